//! Posting: a work request is checked and becomes a message that waits for its doorbell.

use super::context::Context;
use super::event::QpId;
use super::memory::LocalAddress;
use super::message::Kind;
use super::nic::{Arrival, BIND_LINES, INVALIDATE_LINES, wqe_lines};
use super::pair::{Pair, Wqe};
use super::windows::Bound;
use super::world::World;
use crate::memory::window::{Binder, Binding};
use crate::work_request::Work;
use crate::{
    Buffer, CompletionOpcode, Local, LocalMut, PostError, QpState, QpType, SharedSlice, WorkRequest,
};

/// The parts of a checked work request.
struct Parts<'a> {
    kind: Kind,
    asks: bool,
    opcode: CompletionOpcode,
    imm: Option<u32>,
    len: usize,
    inline: &'a [u8],
    source: Option<(LocalAddress, usize)>,
    into: Option<LocalAddress>,
    buffer: Option<Buffer>,
    held: Option<SharedSlice>,
}

impl World {
    /// Posts a work request. Returns its number, and the buffer that the queue pair holds until it is retired.
    #[allow(clippy::result_large_err)] // The request is given back, with the buffer that it owns.
    pub(super) fn post<'a>(
        &mut self,
        context: &Context,
        qp: QpId,
        request: WorkRequest<'a>,
        binder: &Binder,
    ) -> Result<(u64, Option<Buffer>), (PostError, WorkRequest<'a>)> {
        let checked = match self.pair(qp) {
            Some(pair) => check(pair, context, &request, binder).map(|()| pair.posted()),
            None => Err(PostError::State(QpState::Error)),
        };
        let number = match checked {
            Ok(number) => number,
            Err(error) => return Err((error, request)),
        };
        let WorkRequest { work, signaled, failure_id } = request;
        let to = match &work {
            Work::Send { to: Some(to), .. } => {
                QpId { node: to.handle.sim().map_or(qp.node, |way| way.node), number: to.qp.0 }
            }
            _ => self.pair(qp).and_then(|pair| pair.destination()).unwrap_or(qp),
        };
        let Parts { kind, asks, opcode, imm, len, inline, source, into, buffer, held } =
            parts(work, binder);
        let inline_len = (source.is_none() && into.is_none()).then_some(inline.len());
        let lines = {
            let datagram = matches!(kind, Kind::Datagram { .. });
            let atomic = matches!(kind, Kind::CompareAndSwap { .. } | Kind::FetchAdd { .. });
            let remote = atomic || matches!(kind, Kind::Write(_) | Kind::Read(_) | Kind::Flush(_));
            match kind {
                Kind::Bind(_) => BIND_LINES,
                Kind::Invalidate(_) => INVALIDATE_LINES,
                _ => wqe_lines(datagram, remote, atomic, inline_len),
            }
        };
        let class = self.pair(qp).map_or(QpType::Rc, |pair| pair.ty);
        let skipped = match self.pair(qp) {
            Some(pair) if kind.is_local() => {
                pair.has_skipped = true;
                pair.skipped += 1;
                0
            }
            Some(pair) => std::mem::take(&mut pair.skipped),
            None => 0,
        };
        let index = self.messages.insert(class, kind, qp, to);
        let message = &mut self.messages[index];
        (message.psn, message.imm, message.source) = (number as u32, imm, source);
        message.skipped = skipped;
        message.payload.extend_from_slice(inline);
        let wqe = Wqe {
            id: signaled.unwrap_or(failure_id),
            message: index,
            to,
            len: len as u32,
            asks,
            into,
            held,
            opcode,
            signaled: signaled.is_some(),
            done: false,
            lines,
            inline: inline_len.is_some(),
            pushed: false,
            last: false,
            arrival: Arrival::default(),
        };
        if let Some(pair) = self.pair(qp) {
            pair.sends.push_back(wqe);
        }
        self.enter_pair(qp);
        Ok((number, buffer))
    }
}

/// Whether a work request may be posted.
fn check(
    pair: &Pair,
    context: &Context,
    request: &WorkRequest<'_>,
    binder: &Binder,
) -> Result<(), PostError> {
    if matches!(pair.state, QpState::Init | QpState::ReadyToReceive) {
        return Err(PostError::State(pair.state));
    }
    request.check(pair.ty, pair.pd, binder, context.caps())?;
    if let Work::Send { to: Some(to), .. } = &request.work {
        let way = to.handle.sim().ok_or(PostError::Foreign)?;
        if way.world != context.world_name() {
            return Err(PostError::Foreign);
        }
    }
    // Slots become free when a polled completion retires their work.
    if pair.posted() - pair.retired >= pair.max_send_wr {
        Err(PostError::QueueFull)
    } else {
        Ok(())
    }
}

fn parts<'a>(work: Work<'a>, binder: &Binder) -> Parts<'a> {
    match work {
        Work::Send { local, imm, to } => {
            let kind = match to {
                Some(to) => Kind::Datagram { qkey: to.qkey },
                None => Kind::Send,
            };
            outgoing(local, kind, CompletionOpcode::Send, imm)
        }
        Work::Write { local, remote, imm } => {
            outgoing(local, Kind::Write(remote), CompletionOpcode::Write, imm)
        }
        Work::Read { into, remote } => incoming(into, Kind::Read(remote), CompletionOpcode::Read),
        Work::CompareAndSwap { into, remote, expected, new } => {
            let kind = Kind::CompareAndSwap { remote, expected, new };
            incoming(into, kind, CompletionOpcode::CompareAndSwap)
        }
        Work::FetchAdd { into, remote, add } => {
            incoming(into, Kind::FetchAdd { remote, add }, CompletionOpcode::FetchAdd)
        }
        Work::Flush { remote } => {
            Parts { asks: true, ..bare(Kind::Flush(remote), CompletionOpcode::Flush) }
        }
        Work::BindWindow { window, memory, access } => {
            let region = memory.region_key();
            let Binding { rkey, addr, len, .. } = window.bind(binder, memory, access);
            let bound = Bound { rkey, qp: 0, region, access, addr, len };
            bare(Kind::Bind(bound), CompletionOpcode::BindWindow)
        }
        Work::InvalidateWindow { window } => {
            bare(Kind::Invalidate(window.invalidate()), CompletionOpcode::InvalidateWindow)
        }
    }
}

/// A request without bytes.
fn bare<'a>(kind: Kind, opcode: CompletionOpcode) -> Parts<'a> {
    Parts {
        kind,
        asks: false,
        opcode,
        imm: None,
        len: 0,
        inline: &[],
        source: None,
        into: None,
        buffer: None,
        held: None,
    }
}

/// A request that sends bytes: fetched when it is sent, unless they are inline.
fn outgoing(local: Local<'_>, kind: Kind, opcode: CompletionOpcode, imm: Option<u32>) -> Parts<'_> {
    let len = local.len();
    let parts = Parts { imm, len, ..bare(kind, opcode) };
    match local {
        Local::Inline(bytes) => Parts { inline: bytes, ..parts },
        Local::Buffer(buffer) => {
            let source = Some((LocalAddress::new(buffer.start()), len));
            Parts { source, buffer: Some(buffer), ..parts }
        }
        Local::Shared(slice) => {
            let source = Some((LocalAddress::new(slice.start()), len));
            Parts { source, held: Some(slice), ..parts }
        }
    }
}

/// A request that receives bytes.
fn incoming<'a>(into: LocalMut, kind: Kind, opcode: CompletionOpcode) -> Parts<'a> {
    let len = into.len();
    let (place, buffer, held) = match into {
        LocalMut::Buffer(buffer) => (LocalAddress::new(buffer.start()), Some(buffer), None),
        LocalMut::Shared(slice) => (LocalAddress::new(slice.start()), None, Some(slice)),
    };
    Parts { asks: true, len, into: Some(place), buffer, held, ..bare(kind, opcode) }
}
