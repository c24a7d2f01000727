//! The functions of librados that the engine calls, loaded at run time: the program runs without
//! Ceph, and does not depend on its version. Types follow `rados/librados.h`.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::Library;

use super::RadosError;

const LIBRARY: &str = "librados.so.2";

/// Handles of librados: a cluster, a pool, a completion, an operation, an iterator or a listing.
pub type RadosHandle = *mut c_void;
pub type Callback = extern "C" fn(RadosHandle, *mut c_void);
type Text = *const c_char;
type Strings = *const *const c_char;
type Lengths = *const usize;

#[repr(C)]
pub struct Timeval {
    pub seconds: libc::time_t,
    pub microseconds: libc::suseconds_t,
}

macro_rules! api {
    ($(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn find(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self { $(
                    // SAFETY: the function has this type in all versions of `librados.so.2`; the
                    // library is never unloaded.
                    $name: unsafe { *library.get(concat!("rados_", stringify!($name), "\0").as_bytes())? },
                )* })
            }
        }
    };
}

api! {
    fn create2(*mut RadosHandle, Text, Text, u64) -> c_int;
    fn conf_read_file(RadosHandle, Text) -> c_int;
    fn conf_set(RadosHandle, Text, Text) -> c_int;
    fn connect(RadosHandle) -> c_int;
    fn shutdown(RadosHandle);
    fn getaddrs(RadosHandle, *mut *mut c_char) -> c_int;
    fn buffer_free(*mut c_char);
    fn blocklist_add(RadosHandle, *mut c_char, u32) -> c_int;
    fn wait_for_latest_osdmap(RadosHandle) -> c_int;
    fn mon_command(
        RadosHandle, Strings, usize, Text, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize
    ) -> c_int;
    fn ioctx_create(RadosHandle, Text, *mut RadosHandle) -> c_int;
    fn ioctx_get_id(RadosHandle) -> i64;
    fn ioctx_set_namespace(RadosHandle, Text);
    fn ioctx_destroy(RadosHandle);
    fn aio_create_completion2(*mut c_void, Callback, *mut RadosHandle) -> c_int;
    fn aio_get_return_value(RadosHandle) -> c_int;
    fn aio_get_version(RadosHandle) -> u64;
    fn aio_release(RadosHandle);
    fn aio_read(RadosHandle, Text, RadosHandle, *mut c_char, usize, u64) -> c_int;
    fn aio_write_op_operate(RadosHandle, RadosHandle, RadosHandle, Text, *mut libc::time_t, c_int) -> c_int;
    fn create_write_op() -> RadosHandle;
    fn release_write_op(RadosHandle);
    fn write_op_assert_exists(RadosHandle);
    fn write_op_assert_version(RadosHandle, u64);
    fn write_op_create(RadosHandle, c_int, Text);
    fn write_op_omap_cmp2(RadosHandle, Text, u8, Text, usize, usize, *mut c_int);
    fn write_op_omap_set2(RadosHandle, Strings, Strings, Lengths, Lengths, usize);
    fn write_op_omap_rm_keys2(RadosHandle, Strings, Lengths, usize);
    fn write_op_write(RadosHandle, Text, usize, u64);
    fn write_op_write_full(RadosHandle, Text, usize);
    fn write_op_append(RadosHandle, Text, usize);
    fn write_op_truncate(RadosHandle, u64);
    fn write_op_zero(RadosHandle, u64, u64);
    fn write_op_setxattr(RadosHandle, Text, Text, usize);
    fn write_op_remove(RadosHandle);
    fn create_read_op() -> RadosHandle;
    fn release_read_op(RadosHandle);
    fn read_op_operate(RadosHandle, RadosHandle, Text, c_int) -> c_int;
    fn aio_read_op_operate(RadosHandle, RadosHandle, RadosHandle, Text, c_int) -> c_int;
    fn read_op_stat(RadosHandle, *mut u64, *mut libc::time_t, *mut c_int);
    fn read_op_getxattrs(RadosHandle, *mut RadosHandle, *mut c_int);
    fn getxattrs_next(RadosHandle, *mut Text, *mut Text, *mut usize) -> c_int;
    fn getxattrs_end(RadosHandle);
    fn read_op_omap_get_vals2(RadosHandle, Text, Text, u64, *mut RadosHandle, *mut u8, *mut c_int);
    fn read_op_omap_get_vals_by_keys2(RadosHandle, Strings, usize, Lengths, *mut RadosHandle, *mut c_int);
    fn omap_get_next2(RadosHandle, *mut *mut c_char, *mut *mut c_char, *mut usize, *mut usize) -> c_int;
    fn omap_get_end(RadosHandle);
    fn nobjects_list_open(RadosHandle, *mut RadosHandle) -> c_int;
    fn nobjects_list_next2(
        RadosHandle, *mut Text, *mut Text, *mut Text, *mut usize, *mut usize, *mut usize
    ) -> c_int;
    fn nobjects_list_close(RadosHandle);
    fn lock_exclusive(RadosHandle, Text, Text, Text, Text, *mut Timeval, u8) -> c_int;
    fn unlock(RadosHandle, Text, Text, Text) -> c_int;
    fn break_lock(RadosHandle, Text, Text, Text, Text) -> c_int;
    fn list_lockers(
        RadosHandle, Text, Text, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char,
        *mut usize, *mut c_char, *mut usize
    ) -> isize;
}

impl Api {
    /// The functions; the library is loaded once and stays.
    pub fn load() -> Result<&'static Self, RadosError> {
        static LOADED: OnceLock<Result<Api, String>> = OnceLock::new();
        let load = || {
            // SAFETY: the initialisers of librados have no requirements.
            let library = unsafe { Library::new(LIBRARY) };
            let library = Box::leak(Box::new(library.map_err(|error| error.to_string())?));
            Self::find(library).map_err(|error| error.to_string())
        };
        LOADED.get_or_init(load).as_ref().map_err(|why| RadosError::NoLibrary(why.clone()))
    }
}
