//! Files of frames: a line of text, then frames of length (4 bytes), checksum (8 bytes) and body. A
//! frame's checksum is seeded with that of the previous frame. So it covers the file up to there:
//! frames cannot be missing, repeated or taken from another file.

use std::io::{Error, ErrorKind, Read, Write};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Length and checksum.
pub(crate) const HEADER_BYTES: usize = 12;
/// Maximum size of a body in bytes. The longest record belongs to a file with names in many
/// directories; this suffices for millions.
pub(crate) const MAX_BODY: usize = 64 << 20;

/// Why a frame cannot be read.
#[derive(Debug)]
pub(crate) enum FrameError {
    /// The frame is incomplete or its checksum is wrong.
    Damaged(&'static str),
    Io(Error),
}

/// Writes frames in sequence.
pub(crate) struct FrameWriter<'a> {
    pub out: &'a mut dyn Write,
    /// Checksum of the previous frame.
    pub sum: u64,
    pub offset: u64,
}

impl<'a> FrameWriter<'a> {
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self { out, sum: 0, offset: 0 }
    }

    /// Writes bytes that are no frame.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// # Errors
    /// As of the writer; `InvalidInput` if the body is longer than [`MAX_BODY`].
    pub fn frame(&mut self, body: &[u8]) -> Result<(), Error> {
        if body.len() > MAX_BODY {
            return Err(ErrorKind::InvalidInput.into());
        }
        self.sum = xxh3_64_with_seed(body, self.sum);
        self.write(&(body.len() as u32).to_le_bytes())?;
        self.write(&self.sum.to_le_bytes())?;
        self.write(body)
    }
}

/// Reads frames in sequence, after the line of text.
pub(crate) struct FrameReader<'a> {
    input: &'a mut dyn Read,
    pub body: Vec<u8>,
    /// Number of bytes up to the end of the last frame.
    pub offset: u64,
    /// The checksum of the last frame, which covers all frames before it.
    pub sum: u64,
}

impl<'a> FrameReader<'a> {
    /// `offset`: length of the line of text.
    pub fn new(input: &'a mut dyn Read, offset: usize) -> Self {
        Self { input, body: Vec::new(), offset: offset as u64, sum: 0 }
    }

    /// Reads the next frame to [`Self::body`]. After an error, [`Self::offset`] is the start of the
    /// frame.
    pub fn read(&mut self) -> Result<(), FrameError> {
        let mut header = [0; HEADER_BYTES];
        if !self.fill(&mut header)? {
            return Err(FrameError::Damaged("it was cut off"));
        }
        let (length, sum) = decode_header(header);
        if length > MAX_BODY {
            return Err(FrameError::Damaged("a length cannot be"));
        }
        self.body.clear();
        // Missing bytes take no memory.
        (&mut *self.input).take(length as u64).read_to_end(&mut self.body).map_err(FrameError::Io)?;
        if self.body.len() < length {
            return Err(FrameError::Damaged("it was cut off"));
        }
        if sum != xxh3_64_with_seed(&self.body, self.sum) {
            return Err(FrameError::Damaged("a checksum is wrong"));
        }
        self.offset += (HEADER_BYTES + length) as u64;
        self.sum = sum;
        Ok(())
    }

    /// True if nothing follows.
    pub fn is_end(&mut self) -> Result<bool, FrameError> {
        Ok(!self.fill(&mut [0])?)
    }

    /// True if there were enough bytes to fill the buffer.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool, FrameError> {
        match self.input.read_exact(buffer) {
            Ok(()) => Ok(true),
            Err(cause) if cause.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(cause) => Err(FrameError::Io(cause)),
        }
    }
}

/// Length of the body, and checksum.
pub(crate) fn decode_header(header: [u8; HEADER_BYTES]) -> (usize, u64) {
    let [a, b, c, d, sum @ ..] = header;
    (u32::from_le_bytes([a, b, c, d]) as usize, u64::from_le_bytes(sum))
}
