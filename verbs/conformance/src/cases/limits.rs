//! What the device says that it can do, and refuses beyond.

use farcall_verbs::{
    Access, Device, OpenError, Operation, QpType, QueuePairConfig, VerbsError, WorkRequest,
};

use crate::end::{End, Role};
use crate::rig::{Rig, discover, expose, pattern};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

/// Each limit that the device reports is one that it keeps, and one beyond it is refused by name.
pub(crate) async fn a_limit_is_kept_and_one_beyond_refused(end: &mut End) -> CaseResult {
    let device = end.device().clone();
    let caps = device.caps().clone();
    let pd = device.alloc_pd()?;
    for capacity in [0, caps.max_cqe + 1] {
        limited(device.create_cq(capacity, None), "completion queue", capacity)?;
    }
    device.create_cq(caps.max_cqe, None)?;
    let cq = device.create_cq(8, None)?;
    for (sends, receives) in [(caps.max_send_wr + 1, 8), (8, caps.max_recv_wr + 1), (0, 8)] {
        let config = QueuePairConfig::new(QpType::Rc, &cq, &cq);
        let config = config.max_send_wr(sends).max_recv_wr(receives);
        limited(pd.create_qp(config), "queue pair", sends.max(receives))?;
    }
    if caps.srq {
        limited(pd.create_srq(0), "shared receive queue", 0)?;
        limited(pd.create_srq(caps.max_recv_wr + 1), "shared receive queue", caps.max_recv_wr + 1)?;
    }
    limited(pd.alloc_shared(0, Access::all()), "shared region", 0)?;
    limited(pd.alloc_private(0), "private region", 0)?;
    end.meet().await
}

#[track_caller]
fn limited<T>(made: Result<T, VerbsError>, what: &str, asked: usize) -> CaseResult {
    match made {
        Err(VerbsError::Limit { .. }) => Ok(()),
        Err(other) => Err(Halt::failed(format!("a {what} of {asked}: {other}"))),
        Ok(_) => Err(Halt::failed(format!("a {what} of {asked} was made"))),
    }
}

/// What the device says of itself does not contradict itself.
pub(crate) async fn capabilities_do_not_contradict_each_other(end: &mut End) -> CaseResult {
    let caps = end.device().caps().clone();
    ensure!(caps.supports(QpType::Rc, Operation::Send), "RC without SEND");
    ensure!(caps.supports(QpType::Rc, Operation::Write), "RC without WRITE");
    for operation in [Operation::CompareAndSwap, Operation::FetchAdd] {
        ensure_eq!(caps.supports(QpType::Rc, operation), caps.atomics, "{operation:?}");
        ensure!(!caps.supports(QpType::Uc, operation), "UC with {operation:?}");
        ensure!(!caps.supports(QpType::Ud, operation), "UD with {operation:?}");
    }
    ensure_eq!(caps.supports(QpType::Rc, Operation::Flush), caps.flush, "RC with flush");
    for operation in [Operation::BindWindow, Operation::InvalidateWindow] {
        ensure_eq!(caps.supports(QpType::Rc, operation), caps.max_mw > 0, "RC with {operation:?}");
        ensure!(!caps.supports(QpType::Ud, operation), "UD with {operation:?}");
    }
    for operation in [Operation::Read, Operation::Flush] {
        ensure!(!caps.supports(QpType::Uc, operation), "UC with {operation:?}");
    }
    ensure!(caps.mtu >= 256, "an MTU of {}", caps.mtu);
    ensure!(caps.max_message >= 1 << 30, "messages of {} bytes", caps.max_message);
    ensure!(caps.max_send_wr > 0 && caps.max_recv_wr > 0 && caps.max_cqe > 0, "empty queues");
    ensure!(
        caps.completion_payload <= farcall_verbs::COMPLETION_PAYLOAD_BYTES,
        "a payload of {} bytes in a completion",
        caps.completion_payload
    );
    ensure_eq!(end.exchange(&caps.mtu).await?, caps.mtu, "the other end's MTU");
    Ok(())
}

/// The device's clock does not go back.
pub(crate) async fn the_clock_does_not_go_back(end: &mut End) -> CaseResult {
    let mut last_ns = end.device().now_ns();
    for _ in 0..10_000 {
        let now_ns = end.device().now_ns();
        ensure!(now_ns >= last_ns, "the clock went from {last_ns} back to {now_ns}");
        last_ns = now_ns;
    }
    end.meet().await
}

/// A device that is not there is an error that names those that are.
pub(crate) async fn an_unknown_device_is_refused_by_name(end: &mut End) -> CaseResult {
    match Device::open("no-such-device") {
        Err(OpenError::UnknownDevice { name, .. }) => ensure_eq!(name, "no-such-device", "name"),
        Err(other) => return Err(Halt::failed(format!("another error: {other}"))),
        Ok(_) => return Err(Halt::failed("a device that is not there was opened")),
    }
    end.meet().await
}

/// One message may be long: thousands of packets in one WRITE, and back in one READ.
pub(crate) async fn one_message_may_be_very_long(end: &mut End) -> CaseResult {
    // No more than an emulated wire can carry while a case is patient.
    const LEN: usize = 32 << 20;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, LEN, Access::all())?;
            rig.serve_until_met(end).await?;
            let mut tail = vec![0; 4096];
            region.copy_out(LEN - 4096, &mut tail);
            ensure!(tail == pattern(3, 4096), "the end of a long WRITE");
            rig.serve_until_met(end).await
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            let mut buffer = rig.pd.alloc_private(LEN)?.into_buffer();
            buffer[LEN - 4096..].copy_from_slice(&pattern(3, 4096));
            buffer[..4096].copy_from_slice(&pattern(4, 4096));
            rig.post(WorkRequest::write(buffer, there).signaled(1))?;
            rig.success(end, 1).await?;
            let Some(mut buffer) = rig.reclaimed().pop() else {
                return Err(Halt::failed("the buffer was not given back"));
            };
            rig.serve_until_met(end).await?;
            buffer.fill(0);
            rig.post(WorkRequest::read(buffer, there).signaled(2))?;
            rig.success(end, 2).await?;
            let Some(buffer) = rig.reclaimed().pop() else {
                return Err(Halt::failed("the buffer was not given back"));
            };
            ensure!(buffer[..4096] == pattern(4, 4096), "the front of a long READ");
            ensure!(buffer[LEN - 4096..] == pattern(3, 4096), "the end of a long READ");
            rig.serve_until_met(end).await
        }
    }
}
