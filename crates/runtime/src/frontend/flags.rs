//! Inode flags: the `ioctl`s of `chattr(1)` and `lsattr(1)`, which the kernel sends for open files.

use espalier_client::Call;
use espalier_fuse as fuse;
use espalier_proto::{Errno, Ino, InodeFlags, Request, SetAttr};

use super::Form;

/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS`: a word of `FS_*_FL`.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`: a `struct fsxattr`.
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;
/// Size of `struct fsxattr` in bytes. Only the flags in its first word are supported.
const FSXATTR: usize = 28;

/// The flags in `struct fsxattr` (`FS_XFLAG_*`).
const XFLAGS: [(u32, InodeFlags); 4] = [
    (0x08, InodeFlags::IMMUTABLE),
    (0x10, InodeFlags::APPEND),
    (0x40, InodeFlags::NOATIME),
    (0x80, InodeFlags::NODUMP),
];

/// The form in which flags are returned.
pub(super) enum Shape {
    Word,
    Fsxattr,
    /// Nothing: the flags were set.
    Nothing,
}

/// The call for an `ioctl`; `ENOTTY` for unknown commands.
pub(super) fn call<'a>(ino: Ino, command: u32, data: &[u8]) -> Result<(Call<'a>, Form), Errno> {
    let get = |shape| Ok((Call::Request(Request::GetAttr { ino }), Form::Flags(ino, shape)));
    let set = |flags| {
        let set = SetAttr { flags: Some(flags), ..SetAttr::default() };
        Ok((Call::Request(Request::SetAttr { ino, set }), Form::Flags(ino, Shape::Nothing)))
    };
    let word = || data.first_chunk().map(|word| u32::from_ne_bytes(*word)).ok_or(Errno::EINVAL);
    match command {
        GET_FLAGS => get(Shape::Word),
        GET_XATTR => get(Shape::Fsxattr),
        SET_FLAGS => {
            let flags = u8::try_from(word()?).ok().and_then(InodeFlags::from_bits);
            set(flags.ok_or(Errno::EOPNOTSUPP)?)
        }
        SET_XATTR => {
            let mut left = word()?;
            let mut flags = InodeFlags::empty();
            for (bit, flag) in XFLAGS {
                flags.set(flag, left & bit != 0);
                left &= !bit;
            }
            let is_rest_empty = left == 0 && data[4..].iter().all(|byte| *byte == 0);
            if is_rest_empty { set(flags) } else { Err(Errno::EOPNOTSUPP) }
        }
        _ => Err(Errno::ENOTTY),
    }
}

pub(super) fn answer(reply: fuse::Reply, flags: InodeFlags, shape: &Shape) {
    match shape {
        Shape::Nothing => reply.ioctl(0, &[]),
        Shape::Word => reply.ioctl(0, &u32::from(flags.bits()).to_ne_bytes()),
        Shape::Fsxattr => {
            let bits = XFLAGS.iter().filter(|(_, flag)| flags.contains(*flag)).map(|(bit, _)| bit);
            let mut out = [0; FSXATTR];
            out[..4].copy_from_slice(&bits.sum::<u32>().to_ne_bytes());
            reply.ioctl(0, &out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(command: u32, data: &[u8]) -> Result<Option<InodeFlags>, Errno> {
        match call(Ino(2), command, data)?.0 {
            Call::Request(Request::SetAttr { set, .. }) => Ok(set.flags),
            _ => Ok(None),
        }
    }

    #[test]
    fn flags_are_those_of_either_form() {
        let both = Some(InodeFlags::IMMUTABLE | InodeFlags::NOATIME);
        assert_eq!(wanted(SET_FLAGS, &0x90_u32.to_ne_bytes()), Ok(both));
        let mut fsxattr = [0; FSXATTR];
        fsxattr[..4].copy_from_slice(&0x48_u32.to_ne_bytes());
        assert_eq!(wanted(SET_XATTR, &fsxattr), Ok(both));
        assert_eq!(wanted(GET_FLAGS, &[]), Ok(None));
    }

    #[test]
    fn unsupported_flags_are_refused() {
        assert_eq!(wanted(SET_FLAGS, &[]), Err(Errno::EINVAL));
        assert_eq!(wanted(SET_FLAGS, &1_u32.to_ne_bytes()), Err(Errno::EOPNOTSUPP), "secure deletion");
        let mut project = [0; FSXATTR];
        project[12] = 1;
        assert_eq!(wanted(SET_XATTR, &project), Err(Errno::EOPNOTSUPP), "a project");
        assert_eq!(wanted(0x5401, &[]), Err(Errno::ENOTTY));
    }
}
