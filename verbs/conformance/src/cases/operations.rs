//! What each operation moves, on each type of queue pair.

use farcall_verbs::{
    Access, CompletionOpcode, GRH_BYTES, Operation, PostError, QpType, RemoteRegion, Status,
    WorkRequest,
};

use super::datagram::{Datagrams, carry};
use crate::end::{End, Role};
use crate::rig::{QKEY, Rig, SIZES, discover, expose, filled, held, pattern, room};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

const ALL: Access = Access::all();
const LARGEST: usize = SIZES[SIZES.len() - 1];

/// A SEND arrives in the posted buffer, whole, and leaves the rest of the buffer alone.
async fn send_every_size(end: &mut End, ty: QpType, inline: bool) -> CaseResult {
    let mut rig = Rig::connected(end, ty).await?;
    let max_inline = end.device().caps().max_inline;
    for (round, size) in SIZES.into_iter().filter(|size| !inline || *size <= max_inline).enumerate()
    {
        let (id, bytes) = (round as u64, pattern(size as u64, size));
        match end.role() {
            Role::Target => {
                let mut buffer = room(&rig.pd, size + 8)?;
                buffer.fill(0xee);
                rig.qp.post_recv(id, Some(buffer))?;
                end.meet().await?;
                let received = rig.success(end, id).await?;
                ensure_eq!(received.opcode, CompletionOpcode::Recv, "opcode");
                ensure_eq!(received.byte_len as usize, size, "length");
                ensure_eq!(received.imm, None, "immediate of a SEND without one");
                ensure_eq!(received.qp, rig.qp.number(), "queue pair");
                let Some(mut buffer) = received.buffer else {
                    return Err(Halt::failed("the posted buffer was not given back"));
                };
                ensure_eq!(buffer.len(), size, "length of the buffer");
                ensure!(*buffer == *bytes, "a SEND of {size} bytes arrived changed");
                buffer.set_len(size + 8);
                ensure_eq!(buffer[size..], [0xee; 8], "bytes behind the message");
            }
            Role::Initiator => {
                end.meet().await?;
                if inline {
                    rig.post(WorkRequest::send(bytes.as_slice()).signaled(id))?;
                } else {
                    let buffer = filled(&rig.pd, &bytes)?;
                    rig.post(WorkRequest::send(buffer).signaled(id))?;
                }
                let sent = rig.success(end, id).await?;
                ensure_eq!(sent.opcode, CompletionOpcode::Send, "opcode");
                let given_back = rig.reclaimed();
                ensure_eq!(given_back.len(), usize::from(!inline), "buffers given back");
                ensure!(
                    given_back.iter().all(|buffer| **buffer == *bytes),
                    "a sent buffer changed"
                );
            }
        }
        end.meet().await?;
    }
    Ok(())
}

/// RC carries a SEND of every size out of a buffer.
pub(crate) async fn an_rc_send_arrives_whole_at_every_size(end: &mut End) -> CaseResult {
    send_every_size(end, QpType::Rc, false).await
}

/// UC carries a SEND of every size out of a buffer.
pub(crate) async fn a_uc_send_arrives_whole_at_every_size(end: &mut End) -> CaseResult {
    send_every_size(end, QpType::Uc, false).await
}

/// A SEND may carry its bytes in the request itself.
pub(crate) async fn an_inline_send_arrives_whole_at_every_size(end: &mut End) -> CaseResult {
    send_every_size(end, QpType::Rc, true).await
}

/// Inline bytes are copied by the post: what the sender does with them afterwards is not seen.
pub(crate) async fn inline_bytes_are_the_senders_again_after_the_post(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let len = end.device().caps().max_inline.min(32);
    let bytes = pattern(1, len);
    match end.role() {
        Role::Initiator => {
            let mut scratch = bytes.clone();
            // Nothing is posted there yet, so the message leaves later than the post returns.
            rig.post(WorkRequest::send(scratch.as_slice()).signaled(1))?;
            scratch.fill(0);
            end.tell(&())?;
            rig.success(end, 1).await?;
        }
        Role::Target => {
            end.hear::<()>().await?;
            rig.receive(2, len)?;
            let received = rig.success(end, 2).await?;
            let buffer = received.buffer.unwrap_or(room(&rig.pd, 0)?);
            ensure!(*buffer == *bytes, "the message shows bytes that were written after the post");
        }
    }
    rig.serve_until_met(end).await
}

/// More inline bytes than the device has room for are refused by the post.
pub(crate) async fn inline_beyond_the_limit_is_refused(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let max_inline = end.device().caps().max_inline;
    let bytes = vec![0; max_inline + 1];
    let refusal = rig.qp.post_send_one(WorkRequest::send(bytes.as_slice()).signaled(1));
    match refusal {
        Err((PostError::TooLong { len, max }, _)) => {
            ensure_eq!(
                (len, max),
                (max_inline as u64 + 1, max_inline as u64),
                "the refused length and the limit"
            );
        }
        other => return Err(Halt::failed(format!("too many inline bytes: {other:?}"))),
    }
    end.meet().await
}

/// A WRITE puts exactly its bytes where it says, out of each kind of local memory, and the target's
/// CPU has no part in it.
async fn write_every_size(end: &mut End, ty: QpType) -> CaseResult {
    let mut rig = Rig::connected(end, ty).await?;
    let len = LARGEST + 64;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, len, ALL)?;
            for size in SIZES {
                for (kind, offset) in [0, 8, 13].into_iter().enumerate() {
                    let bytes = pattern((size + kind) as u64, size);
                    end.hear::<()>().await?;
                    // Only RC's completion at the initiator says that the bytes are here.
                    end.poll_until("the written bytes", || {
                        Ok((held(&region, offset, size) == bytes).then_some(()))
                    })
                    .await?;
                    let around = (held(&region, offset + size, 8), held(&region, 0, offset));
                    ensure_eq!(around, (vec![0; 8], vec![0; offset]), "around {size} bytes");
                    region.copy_in(0, &vec![0; offset + size]);
                    end.tell(&())?;
                }
            }
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            let scratch = rig.pd.alloc_shared(LARGEST, Access::empty())?;
            for (round, size) in SIZES.into_iter().enumerate() {
                for (kind, offset) in [0, 8, 13].into_iter().enumerate() {
                    let (id, bytes) =
                        ((4 * round + kind) as u64, pattern((size + kind) as u64, size));
                    let there = remote.slice(offset, size as u64)?;
                    if kind == 0 && size <= end.device().caps().max_inline {
                        rig.post(WorkRequest::write(bytes.as_slice(), there).signaled(id))?;
                    } else if kind == 1 {
                        scratch.copy_in(0, &bytes);
                        let here = scratch.slice(0, size);
                        rig.post(WorkRequest::write(here, there).signaled(id))?;
                    } else {
                        let here = filled(&rig.pd, &bytes)?;
                        rig.post(WorkRequest::write(here, there).signaled(id))?;
                    }
                    let written = rig.success(end, id).await?;
                    ensure_eq!(written.opcode, CompletionOpcode::Write, "opcode");
                    end.exchange(&()).await?;
                }
            }
        }
    }
    end.meet().await
}

/// RC carries a WRITE of every size.
pub(crate) async fn an_rc_write_lands_whole_at_every_size(end: &mut End) -> CaseResult {
    write_every_size(end, QpType::Rc).await
}

/// UC carries a WRITE of every size.
pub(crate) async fn a_uc_write_lands_whole_at_every_size(end: &mut End) -> CaseResult {
    write_every_size(end, QpType::Uc).await
}

/// WRITE_WITH_IMM writes, consumes one receive, and tells its length and immediate; the receive's
/// own buffer comes back untouched.
async fn write_with_imm_every_size(end: &mut End, ty: QpType) -> CaseResult {
    let mut rig = Rig::connected(end, ty).await?;
    let carried = end.device().caps().completion_payload;
    let max_inline = end.device().caps().max_inline;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, LARGEST, ALL)?;
            for (round, size) in SIZES.into_iter().enumerate() {
                let (id, bytes) = (round as u64, pattern(size as u64, size));
                let mut buffer = room(&rig.pd, 16)?;
                buffer.fill(0xee);
                rig.qp.post_recv(id, (round % 2 == 0).then_some(buffer))?;
                end.tell(&())?;
                let received = rig.success(end, id).await?;
                ensure_eq!(received.opcode, CompletionOpcode::RecvWriteWithImm, "opcode");
                ensure_eq!(received.imm, Some(!(size as u32)), "immediate");
                ensure_eq!(received.byte_len as usize, size, "length");
                ensure!(held(&region, 0, size) == bytes, "{size} bytes are not all there");
                if let Some(payload) = received.payload() {
                    ensure!(size <= carried, "a payload of {size} bytes in the completion");
                    ensure!(payload == bytes, "the completion's payload differs from memory");
                }
                let untouched = received.buffer.as_deref().map(|bytes| bytes == [0xee; 16]);
                ensure_eq!(untouched, (round % 2 == 0).then_some(true), "the receive's buffer");
                end.meet().await?;
            }
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            for (round, size) in SIZES.into_iter().enumerate() {
                let (id, bytes) = (round as u64, pattern(size as u64, size));
                end.hear::<()>().await?;
                let there = remote.slice(0, size as u64)?;
                let write = if size <= max_inline && round % 2 == 1 {
                    WorkRequest::write(bytes.as_slice(), there)
                } else {
                    WorkRequest::write(filled(&rig.pd, &bytes)?, there)
                };
                rig.post(write.imm(!(size as u32)).signaled(id))?;
                rig.success(end, id).await?;
                end.meet().await?;
            }
        }
    }
    Ok(())
}

/// RC carries WRITE_WITH_IMM of every size.
pub(crate) async fn an_rc_write_with_imm_consumes_a_receive_at_every_size(
    end: &mut End,
) -> CaseResult {
    write_with_imm_every_size(end, QpType::Rc).await
}

/// UC carries WRITE_WITH_IMM of every size.
pub(crate) async fn a_uc_write_with_imm_consumes_a_receive_at_every_size(
    end: &mut End,
) -> CaseResult {
    write_with_imm_every_size(end, QpType::Uc).await
}

/// A READ fetches exactly the bytes it names, into each kind of local memory.
pub(crate) async fn a_read_fetches_every_size(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let bytes = pattern(1, LARGEST + 16);
    match end.role() {
        Role::Target => {
            let region = rig.pd.alloc_shared(bytes.len(), Access::REMOTE_READ)?;
            region.copy_in(0, &bytes);
            end.tell(&region.remote())?;
            end.meet().await?;
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            let scratch = rig.pd.alloc_shared(LARGEST + 8, Access::empty())?;
            for (round, size) in SIZES.into_iter().enumerate() {
                let offset = 3 * (round % 4);
                let wanted = &bytes[offset..offset + size];
                let there = remote.slice(offset as u64, size as u64)?;

                let mut into = room(&rig.pd, size + 8)?;
                into.fill(0xee);
                into.set_len(size);
                rig.post(WorkRequest::read(into, there).signaled(1))?;
                let read = rig.success(end, 1).await?;
                ensure_eq!(read.opcode, CompletionOpcode::Read, "opcode");
                let mut given_back = rig.reclaimed();
                ensure_eq!(given_back.len(), 1, "buffers given back");
                ensure!(*given_back[0] == *wanted, "{size} bytes were read wrong");
                given_back[0].set_len(size + 8);
                ensure_eq!(given_back[0][size..], [0xee; 8], "bytes behind the READ");

                scratch.copy_in(0, &vec![0xee; size + 8]);
                rig.post(WorkRequest::read(scratch.slice(0, size), there).signaled(2))?;
                rig.success(end, 2).await?;
                ensure!(held(&scratch, 0, size) == wanted, "{size} bytes were read wrong");
                ensure_eq!(held(&scratch, size, 8), [0xee; 8], "bytes behind the READ");
            }
            end.meet().await?;
        }
    }
    Ok(())
}

/// Each of the 32 bits of an immediate arrives, with every operation that has one.
pub(crate) async fn immediates_arrive_bit_for_bit(end: &mut End) -> CaseResult {
    const IMMEDIATES: [u32; 5] = [0, 1, 0x0102_0304, 0x8000_0000, u32::MAX];
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let _region = expose(end, &rig.pd, 8, ALL)?;
            rig.qp.post_recvs(0..2 * IMMEDIATES.len() as u64)?;
            end.tell(&())?;
            for (round, imm) in IMMEDIATES.into_iter().enumerate() {
                let (sent, written) = (2 * round as u64, 2 * round as u64 + 1);
                ensure_eq!(rig.success(end, sent).await?.imm, Some(imm), "SEND");
                ensure_eq!(rig.success(end, written).await?.imm, Some(imm), "WRITE_WITH_IMM");
            }
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            end.hear::<()>().await?;
            for imm in IMMEDIATES {
                rig.post(WorkRequest::send(b"").imm(imm).signaled(1))?;
                rig.success(end, 1).await?;
                let there = remote.slice(0, 8)?;
                rig.post(WorkRequest::write(&[1; 8], there).imm(imm).signaled(2))?;
                rig.success(end, 2).await?;
            }
        }
    }
    end.meet().await
}

/// A request whose two lengths differ is refused by the post: nothing half-done is possible.
pub(crate) async fn lengths_that_differ_are_refused(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let remote = RemoteRegion::new(0x1000, 1, 64);
    let write = WorkRequest::write(&[0; 8], remote.slice(0, 16)?).signaled(1);
    let refusal = rig.qp.post_send_one(write).map_err(|(error, _)| error);
    ensure_eq!(refusal, Err(PostError::Length { local: 8, remote: 16 }), "WRITE");
    let read = WorkRequest::read(room(&rig.pd, 32)?, remote.slice(0, 16)?).signaled(1);
    match rig.qp.post_send_one(read) {
        Err((PostError::Length { .. }, _)) => {}
        other => return Err(Halt::failed(format!("READ of 16 bytes into 32: {other:?}"))),
    }
    end.meet().await
}

/// Every operation that the device offers on `ty` succeeds; every other is refused by name.
async fn offered_or_refused(end: &mut End, ty: QpType) -> CaseResult {
    let mut rig = Rig::connected(end, ty).await?;
    let region = expose(end, &rig.pd, 64, ALL)?;
    let remote = discover(end).await?;
    rig.qp.post_recvs(0..8)?;
    end.meet().await?;
    if end.role() == Role::Initiator {
        for operation in Operation::ALL {
            let there = remote.slice(0, 8)?;
            let request = match operation {
                Operation::Send => WorkRequest::send(b"").signaled(1),
                Operation::SendWithImm => WorkRequest::send(b"").imm(5).signaled(1),
                Operation::Write => WorkRequest::write(&[0; 8], there).signaled(1),
                Operation::WriteWithImm => WorkRequest::write(&[0; 8], there).imm(5).signaled(1),
                Operation::Read => WorkRequest::read(region.slice(0, 8), there).signaled(1),
                Operation::CompareAndSwap => {
                    WorkRequest::compare_and_swap(region.slice(0, 8), there, 0, 0).signaled(1)
                }
                Operation::FetchAdd => {
                    WorkRequest::fetch_add(region.slice(0, 8), there, 0).signaled(1)
                }
                // Of no bytes, as this is no persistent memory.
                Operation::Flush => WorkRequest::flush(remote.slice(0, 0)?).signaled(1),
                _ => continue,
            };
            let posted = rig.qp.post_send_one(request).map_err(|(error, _)| error);
            if end.device().caps().supports(ty, operation) {
                ensure_eq!(posted, Ok(()), "{operation:?} on {ty:?}");
                let completion = rig.completion(end).await?;
                ensure_eq!(completion.status, Status::Success, "{operation:?} on {ty:?}");
            } else {
                ensure_eq!(
                    posted,
                    Err(PostError::Unsupported { ty, operation }),
                    "{operation:?} on {ty:?}"
                );
            }
        }
    }
    rig.serve_until_met(end).await
}

/// What RC offers works, what it does not is refused.
pub(crate) async fn rc_carries_what_the_device_says(end: &mut End) -> CaseResult {
    offered_or_refused(end, QpType::Rc).await
}

/// What UC offers works, what it does not is refused.
pub(crate) async fn uc_carries_what_the_device_says(end: &mut End) -> CaseResult {
    offered_or_refused(end, QpType::Uc).await
}

/// UD carries SEND and nothing one-sided.
pub(crate) async fn ud_carries_what_the_device_says(end: &mut End) -> CaseResult {
    let mut rig = Datagrams::open(end).await?;
    let region = rig.base.pd.alloc_shared(64, ALL)?;
    let there = RemoteRegion::new(0x1000, 1, 64).slice(0, 8)?;
    for operation in Operation::ALL {
        let request = match operation {
            Operation::Write => WorkRequest::write(&[0; 8], there).signaled(1),
            Operation::WriteWithImm => WorkRequest::write(&[0; 8], there).imm(5).signaled(1),
            Operation::Read => WorkRequest::read(region.slice(0, 8), there).signaled(1),
            Operation::CompareAndSwap => {
                WorkRequest::compare_and_swap(region.slice(0, 8), there, 0, 0).signaled(1)
            }
            Operation::FetchAdd => WorkRequest::fetch_add(region.slice(0, 8), there, 0).signaled(1),
            Operation::Flush => WorkRequest::flush(there).signaled(1),
            _ => continue,
        };
        ensure!(
            !end.device().caps().supports(QpType::Ud, operation),
            "the device says that UD carries {operation:?}"
        );
        let refusal = rig.base.qp.post_send_one(request).map_err(|(error, _)| error);
        let wanted = PostError::Unsupported { ty: QpType::Ud, operation };
        ensure_eq!(refusal, Err(wanted), "{operation:?}");
    }
    for imm in [None, Some(9)] {
        let received = carry(end, &mut rig, b"word", imm).await?;
        if let Some(received) = received {
            ensure_eq!(received.imm, imm, "immediate");
            ensure_eq!(received.byte_len as usize, GRH_BYTES + 4, "length");
        }
    }
    end.meet().await
}

/// A destination belongs to a datagram: a connected queue pair refuses one, UD refuses to go without.
pub(crate) async fn a_destination_belongs_to_datagrams(end: &mut End) -> CaseResult {
    let mut datagrams = Datagrams::open(end).await?;
    let mut connected = Rig::connected(end, QpType::Rc).await?;
    let refusal = datagrams.base.qp.post_send_one(WorkRequest::send(b"whither").signaled(1));
    ensure_eq!(refusal.map_err(|(error, _)| error), Err(PostError::Destination), "UD without");
    let addressed = WorkRequest::send(b"hither").to(&datagrams.handle, datagrams.peer, QKEY);
    let refusal = connected.qp.post_send_one(addressed.signaled(1));
    ensure_eq!(refusal.map_err(|(error, _)| error), Err(PostError::Destination), "RC with");
    end.meet().await
}
