//! The functions of libibverbs and librdmacm, loaded at run time.
//!
//! Types, and the functions that are inline in C, come from `rdma_sys`; every other function is
//! looked up in the loaded libraries. If it were called through `rdma_sys`, the linker would name
//! the libraries in the program's header, and the program would not start without them.
#![expect(
    unsafe_code,
    reason = "loads the libraries of rdma-core and holds pointers to their functions"
)]

use std::error::Error;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use libc::sockaddr;
use libloading::Library;
use rdma_sys::{
    _compat_ibv_port_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};

use crate::error::Unavailable;

const IBVERBS: &str = "libibverbs.so.1";
const RDMACM: &str = "librdmacm.so.1";

/// Declares the table of functions; the compiler compares each signature with the one that
/// `rdma_sys` generated from the headers.
macro_rules! functions {
    ($($library:ident { $(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// The functions of the loaded libraries.
        #[derive(Debug)]
        pub(super) struct Functions {
            $($(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        $($(const _: unsafe extern "C" fn($($argument),*) $(-> $result)? = rdma_sys::$name;)*)*

        impl Functions {
            fn load() -> Result<Self, Unavailable> {
                let functions = Self {
                    $($($name: {
                        let symbol = find($library, stringify!($name))?;
                        // SAFETY: the function has this signature: it was compared above with that
                        // of the headers, which the loaded sonames keep.
                        unsafe {
                            std::mem::transmute::<
                                *const c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(symbol)
                        }
                    },)*)*
                };
                Ok(functions)
            }
        }
    };
}

functions! {
    IBVERBS {
        fn ibv_get_device_name(*mut ibv_device) -> *const std::ffi::c_char;
        fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
        fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(*mut ibv_async_event);
        fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(
            *mut ibv_context,
            c_int,
            *mut c_void,
            *mut ibv_comp_channel,
            c_int
        ) -> *mut ibv_cq;
        fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ibv_cq, std::ffi::c_uint);
        fn ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        fn ibv_modify_srq(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
        fn ibv_destroy_srq(*mut ibv_srq) -> c_int;
        fn ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
    }
    RDMACM {
        fn rdma_get_devices(*mut c_int) -> *mut *mut ibv_context;
        fn rdma_free_devices(*mut *mut ibv_context);
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(*mut rdma_event_channel);
        fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
        fn rdma_create_id(
            *mut rdma_event_channel,
            *mut *mut rdma_cm_id,
            *mut c_void,
            rdma_port_space::Type
        ) -> c_int;
        fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        fn rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        fn rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        fn rdma_bind_addr(*mut rdma_cm_id, *mut sockaddr) -> c_int;
        fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_resolve_addr(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
        fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        fn rdma_disconnect(*mut rdma_cm_id) -> c_int;
    }
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// `ibv_reg_dmabuf_mr`: offset, length, address for the device, descriptor and access flags.
pub(super) type RegisterDmaBuf =
    unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

static REGISTER_DMA_BUF: OnceLock<Option<RegisterDmaBuf>> = OnceLock::new();

/// The function that registers a dma-buf. Libraries before rdma-core 34 do not have it, and the
/// headers that `rdma_sys` was generated from may not declare it.
pub(super) fn dma_buf_registration() -> Option<RegisterDmaBuf> {
    *REGISTER_DMA_BUF.get_or_init(|| {
        let symbol = find(IBVERBS, "ibv_reg_dmabuf_mr").ok()?;
        // SAFETY: the function has this signature in `infiniband/verbs.h` since it exists.
        Some(unsafe { std::mem::transmute::<*const c_void, RegisterDmaBuf>(symbol) })
    })
}

/// The functions. The first call that succeeds loads the libraries for the lifetime of the program.
pub(super) fn functions() -> Result<&'static Functions, Unavailable> {
    if let Some(functions) = FUNCTIONS.get() {
        return Ok(functions);
    }
    let functions = Functions::load()?;
    Ok(FUNCTIONS.get_or_init(|| functions))
}

/// The address of a function of a library, which stays loaded.
fn find(library: &'static str, function: &'static str) -> Result<*const c_void, Unavailable> {
    // SAFETY: rdma-core's libraries have no constructors with requirements on their callers.
    let loaded = unsafe { Library::new(library) };
    let loaded = loaded.map_err(|error| Unavailable::LibraryMissing {
        library,
        // The loader's own message is the source of this error.
        cause: error.source().unwrap_or(&error).to_string(),
    })?;
    // SAFETY: the type only says that this is an address; the caller gives it its signature.
    let symbol = unsafe { loaded.get::<*const c_void>(function.as_bytes()) };
    let address = symbol.map(|symbol| *symbol);
    // The handle is never closed, so every function found stays valid.
    std::mem::forget(loaded);
    match address {
        Ok(address) if !address.is_null() => Ok(address),
        _ => Err(Unavailable::LibraryTooOld { library, function }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_named() {
        let error = find("libno-such-thing.so.1", "f").unwrap_err();
        assert!(matches!(&error, Unavailable::LibraryMissing { library, .. }
                if *library == "libno-such-thing.so.1"));
        let text = error.to_string();
        assert!(
            text.starts_with("RDMA is unavailable: ") && !text.contains('\n'),
            "{text}"
        );
        assert!(text.contains("cannot open shared object file"), "{text}");
        assert!(error.remedy().contains("libibverbs1"));
    }

    #[test]
    fn dma_bufs_are_optional() {
        let exists = find(IBVERBS, "ibv_reg_dmabuf_mr").is_ok();
        assert_eq!(dma_buf_registration().is_some(), exists);
    }

    #[test]
    fn missing_library_function_is_named() {
        let error = find("libc.so.6", "no_such_function").unwrap_err();
        assert!(matches!(&error, Unavailable::LibraryTooOld { function, .. }
                if *function == "no_such_function"));
    }

    #[test]
    fn all_functions_are_found_in_installed_libraries() {
        match functions() {
            Ok(first) => assert!(std::ptr::eq(first, functions().unwrap())),
            Err(Unavailable::LibraryMissing { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}
