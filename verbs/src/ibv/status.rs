//! Translates every status and errno of libibverbs.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::sys::{ibv_wc_status as wc, ibv_wc_status::Type as WcStatus};
use crate::{ConnectError, OpenError, PostError, Status, VerbsError};

/// The status of a completion.
pub(super) fn status(code: WcStatus) -> Status {
    match code {
        wc::IBV_WC_SUCCESS => Status::Success,
        wc::IBV_WC_LOC_LEN_ERR => Status::LocalLength,
        wc::IBV_WC_LOC_PROT_ERR | wc::IBV_WC_LOC_ACCESS_ERR => Status::LocalProtection,
        wc::IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        wc::IBV_WC_MW_BIND_ERR => Status::WindowBind,
        wc::IBV_WC_REM_INV_REQ_ERR | wc::IBV_WC_REM_INV_RD_REQ_ERR => Status::RemoteInvalidRequest,
        wc::IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        wc::IBV_WC_REM_OP_ERR | wc::IBV_WC_REM_ABORT_ERR => Status::RemoteOperation,
        wc::IBV_WC_RETRY_EXC_ERR | wc::IBV_WC_RESP_TIMEOUT_ERR => Status::RetryExceeded,
        wc::IBV_WC_RNR_RETRY_EXC_ERR => Status::RnrRetryExceeded,
        other => Status::Vendor(other),
    }
}

/// The status of a receive's completion. For a message that is longer than its receive, Soft-RoCE reports a
/// malformed work request (`rxe_resp.c`, RESPST_ERR_MALFORMED_WQE) where the specification has a local
/// length error (volume 1, sections 9.9.3.1.1 and 11.6.2). Our receives have one element of registered
/// memory, so nothing else about them can be malformed.
pub(super) fn receive_status(code: WcStatus) -> Status {
    match code {
        wc::IBV_WC_LOC_QP_OP_ERR => Status::LocalLength,
        other => status(other),
    }
}

/// The errno of a call that returned null.
pub(super) fn last() -> Errno {
    let code = io::Error::last_os_error().raw_os_error();
    code.map_or(Errno::IO, Errno::from_raw_os_error)
}

/// The errno that a call returned. Some calls return -1 and set errno instead.
pub(super) fn returned(code: i32) -> Errno {
    if code > 0 { Errno::from_raw_os_error(code) } else { last() }
}

/// A resource that could not be created or used.
pub(super) fn resource(what: &'static str) -> impl Fn(Errno) -> VerbsError {
    move |errno| VerbsError::System { what, source: errno.into() }
}

/// Memory that could not be registered, usually because the process may lock too little.
pub(super) fn registration(len: usize) -> impl Fn(Errno) -> VerbsError {
    move |errno| match (errno, getrlimit(Resource::Memlock).current) {
        (Errno::NOMEM | Errno::PERM | Errno::AGAIN, Some(limit)) => {
            VerbsError::LockedMemory { len, limit }
        }
        _ => VerbsError::System { what: "registering memory", source: errno.into() },
    }
}

/// A device file that could not be opened.
pub(super) fn opening(device: &str, file: &str, errno: Errno) -> OpenError {
    let device = device.to_owned();
    match errno {
        Errno::ACCESS | Errno::PERM => OpenError::NoPermission { device, file: file.to_owned() },
        Errno::NOENT | Errno::NODEV | Errno::NXIO => OpenError::NoDeviceFile { device },
        _ => OpenError::System { device, what: "opening it", source: errno.into() },
    }
}

/// A peer that could not be connected to, at `gid`.
pub(super) fn connecting(gid: &[u8; 16], step: &'static str, errno: Errno) -> ConnectError {
    match errno {
        Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::TIMEDOUT | Errno::ADDRNOTAVAIL => {
            ConnectError::Unreachable { gid: super::port::gid_text(gid), source: errno.into() }
        }
        _ => ConnectError::System { what: step, source: errno.into() },
    }
}

/// A work request that the device refused.
pub(super) fn posting(errno: Errno) -> PostError {
    match errno {
        Errno::NOMEM => PostError::QueueFull,
        _ => PostError::Device { errno: errno.raw_os_error() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_is_translated_and_an_unknown_one_keeps_its_number() {
        let found: Vec<Status> = (0..=13).map(status).collect();
        use Status::*;
        let wanted = [
            Success,
            LocalLength,
            Vendor(2),
            Vendor(3),
            LocalProtection,
            Flushed,
            WindowBind,
            Vendor(7),
            LocalProtection,
            RemoteInvalidRequest,
            RemoteAccess,
            RemoteOperation,
            RetryExceeded,
            RnrRetryExceeded,
        ];
        assert_eq!(found, wanted);
        assert_eq!(status(0x97), Vendor(0x97));
    }

    #[test]
    fn a_message_that_is_too_long_has_the_same_status_on_every_device() {
        assert_eq!(receive_status(1), Status::LocalLength);
        assert_eq!(receive_status(2), Status::LocalLength);
        assert_eq!(receive_status(5), Status::Flushed);
    }

    #[test]
    fn an_error_that_the_user_can_fix_says_how() {
        let text = opening("rxe0", "/dev/infiniband/uverbs0", Errno::ACCESS).to_string();
        assert!(text.contains("rxe0") && text.contains("/dev/infiniband/uverbs0"), "{text}");
        let text = VerbsError::LockedMemory { len: 1 << 20, limit: 65_536 }.to_string();
        assert!(text.contains("65536") && text.contains("ulimit -l"), "{text}");
        let gid = *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x07";
        let text = connecting(&gid, "step", Errno::HOSTUNREACH).to_string();
        assert!(text.contains("10.0.0.7"), "{text}");
    }

    #[test]
    fn a_full_queue_is_distinguished_from_a_refusal() {
        assert_eq!(posting(Errno::NOMEM), PostError::QueueFull);
        assert_eq!(posting(Errno::INVAL), PostError::Device { errno: 22 });
    }
}
