//! Assertions that return an error instead of panicking, so that a forked child can report it.

/// Fails the case unless the condition is true.
macro_rules! check {
    ($cond:expr) => { check!($cond, "") };
    ($cond:expr, $($arg:tt)+) => {
        if !$cond {
            let why = format!($($arg)+);
            return Err($crate::Failure::at(format!("not true: {} {why}", stringify!($cond))));
        }
    };
}

/// Fails the case unless both sides are equal.
macro_rules! same {
    ($left:expr, $right:expr) => { same!($left, $right, "") };
    ($left:expr, $right:expr, $($arg:tt)+) => {
        // A match keeps temporaries alive during the comparison.
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    let why = format!($($arg)+);
                    let (left, right) = ($crate::process::short(left), $crate::process::short(right));
                    return Err($crate::Failure::at(format!(
                        "{} is {left}, not {right} {why}", stringify!($left))));
                }
            }
        }
    };
}

/// Fails the case unless the call fails with one of the given error numbers.
macro_rules! fails {
    ($call:expr, $($errno:ident)|+) => {
        match $call {
            Ok(_) => {
                return Err($crate::Failure::at(format!(
                    "{} succeeded, expected {}", stringify!($call), stringify!($($errno)|+))));
            }
            Err(e) => {
                let code = $crate::process::Code::code(&e);
                if ![$(libc::$errno),+].contains(&code) {
                    return Err($crate::Failure::at(format!(
                        "{} failed with {e}, expected {}", stringify!($call), stringify!($($errno)|+))));
                }
            }
        }
    };
}

pub(crate) use {check, fails, same};
