use core::fmt;

use serde::{Deserialize, Serialize};

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// An error of a system call, with Linux's numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(into = "i32", from = "i32")]
        #[repr(i32)]
        pub enum Errno { $(#[doc = $text] $name = $number,)* }

        impl Errno {
            /// The error with that number; `EIO` for an unknown number.
            pub fn from_raw(number: i32) -> Self {
                match number { $($number => Self::$name,)* _ => Self::EIO }
            }
        }

        impl fmt::Display for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)* })
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "cross-device link";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in system";
    EMFILE = 24, "too many open files";
    ENOTTY = 25, "inappropriate ioctl";
    ETXTBSY = 26, "text file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    ERANGE = 34, "result too large";
    EDEADLK = 35, "resource deadlock avoided";
    ENAMETOOLONG = 36, "file name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "function not provided";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many symbolic links";
    ENODATA = 61, "no such attribute";
    EOVERFLOW = 75, "value too large";
    EOPNOTSUPP = 95, "operation not supported";
    ESTALE = 116, "stale file handle";
    EDQUOT = 122, "quota exceeded";
}

impl core::error::Error for Errno {}

impl Errno {
    pub fn raw(self) -> i32 {
        self as i32
    }
}

impl From<Errno> for i32 {
    fn from(errno: Errno) -> Self {
        errno.raw()
    }
}

impl From<i32> for Errno {
    fn from(number: i32) -> Self {
        Self::from_raw(number)
    }
}
