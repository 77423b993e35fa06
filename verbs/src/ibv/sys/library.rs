//! The functions of libibverbs, loaded on first use.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq,
    ibv_srq_init_attr,
};

/// The library's name on every Linux.
const DEFAULT_NAME: &str = "libibverbs.so.1";

/// Declares the functions, and loads all of them.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The loaded libibverbs. Fields have the functions' names without the prefix `ibv_`.
        #[derive(Debug)]
        pub(in crate::ibv) struct Library {
            $(pub(in crate::ibv) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Never closed: providers and their threads may use it.
            _library: libloading::Library,
        }

        impl Library {
            fn load_from(name: &str) -> Result<Library, libloading::Error> {
                // SAFETY: loading runs the initializers of libibverbs, as in any program that is linked with it.
                let library = unsafe { libloading::Library::new(name)? };
                Ok(Library {
                    $($name: {
                        let symbol = concat!("ibv_", stringify!($name));
                        // SAFETY: the signature is that of <infiniband/verbs.h>. If a symbol has several versions,
                        // the newest is found, which is that of the header.
                        *unsafe { library.get(symbol)? }
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    fork_init() -> c_int;
    get_device_list(*mut c_int) -> *mut *mut ibv_device;
    free_device_list(*mut *mut ibv_device);
    get_device_name(*mut ibv_device) -> *const c_char;
    open_device(*mut ibv_device) -> *mut ibv_context;
    close_device(*mut ibv_context) -> c_int;
    get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event(*mut ibv_async_event);
    query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd(*mut ibv_pd) -> c_int;
    reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    reg_mr_iova2(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    dereg_mr(*mut ibv_mr) -> c_int;
    create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq(*mut ibv_cq) -> c_int;
    get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events(*mut ibv_cq, c_uint);
    create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    destroy_srq(*mut ibv_srq) -> c_int;
    create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    destroy_qp(*mut ibv_qp) -> c_int;
    create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    destroy_ah(*mut ibv_ah) -> c_int;
}

/// Why libibverbs cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} cannot be loaded ({reason}); install it (on Debian: apt-get install libibverbs1 \
     ibverbs-providers, elsewhere: rdma-core)"
)]
pub(in crate::ibv) struct Missing {
    name: String,
    reason: String,
}

impl Library {
    /// libibverbs, loaded once per process.
    pub(in crate::ibv) fn get() -> Result<&'static Library, Missing> {
        static LOADED: OnceLock<Result<Library, Missing>> = OnceLock::new();
        let load = || Library::load(DEFAULT_NAME).inspect(Library::allow_forks);
        LOADED.get_or_init(load).as_ref().map_err(Missing::clone)
    }

    /// Has a fork leave the queues of the devices' drivers where the NIC knows them, as [`Mapping`](crate::memory::mapping::Mapping)
    /// does for regions. It must be the first call. Since Linux 5.12 it has nothing to do: fork copies such pages at once.
    fn allow_forks(&self) {
        // SAFETY: nothing else of the library is in use yet.
        let code = unsafe { (self.fork_init)() };
        if code != 0 {
            let error = std::io::Error::from_raw_os_error(code);
            tracing::warn!(%error, "after a fork, RDMA queue pairs of this process may fail");
        }
    }

    fn load(name: &str) -> Result<Library, Missing> {
        Library::load_from(name).map_err(|error| {
            let reason = std::error::Error::source(&error)
                .map_or_else(|| error.to_string(), ToString::to_string);
            Missing { name: name.to_owned(), reason }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_says_what_to_install() {
        let missing = Library::load("libibverbs-of-another-planet.so.1").unwrap_err().to_string();
        assert!(missing.contains("libibverbs-of-another-planet.so.1"), "{missing}");
        assert!(missing.contains("apt-get install libibverbs1"), "{missing}");
    }

    #[test]
    fn a_library_without_the_functions_is_an_error_too() {
        let other = Library::load("libc.so.6").unwrap_err().to_string();
        assert!(other.contains("ibv_get_device_list"), "{other}");
    }
}
