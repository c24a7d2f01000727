//! Requests for numbers, as lines of JSON over TCP.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::sequencer::TakenNumbers;

/// Longest line, in bytes.
const LINE_MAX: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NumberRequest {
    /// The token in the host's record, which users of the logs can read.
    pub token: String,
    pub log: String,
    pub count: u64,
    pub floor: u64,
    /// Let the host ask the holder, if it is not the holder itself.
    pub forward: bool,
    /// An epoch that the client knows to be sealed: the host holds none up to it.
    pub sealed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NumberReply {
    Taken(TakenNumbers),
    /// Another process is the holder.
    NotHolder,
    /// The token is that of another start of the host, or the log does not exist.
    Refused,
}

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct LineConnection {
    reader: BufReader<TcpStream>,
}

impl LineConnection {
    pub fn connect(address: &str, timeout: Duration) -> io::Result<Self> {
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(timeout))?;
                    return Self::new(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    pub fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.reader.get_mut().write_all(&line)
    }

    /// The next message; `None` at the end of the connection.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = Vec::new();
        self.reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        match line.last() {
            None => Ok(None),
            Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    pub fn ask(&mut self, request: &NumberRequest) -> io::Result<NumberReply> {
        self.send(request)?;
        self.receive()?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}
