//! The bare verb: work requests between two queue pairs of this process.

use std::mem;

use anyhow::{Context, Result, ensure};
use farcall_verbs::{
    Access, Buffer, CompletionQueue, ConnectOptions, Device, MemoryWindow, QpType, QueuePair,
    QueuePairConfig, RemoteSlice, SharedRegion, Status, WorkCompletion, WorkRequest,
};

use super::{Contender, Kind, Pattern};

/// Signals the last work request of a pattern, and polls for its completion.
pub(super) struct BareVerb {
    name: &'static str,
    kind: Kind,
    targets: Vec<RemoteSlice>,
    buffers: Vec<Buffer>,
    qp: QueuePair,
    cq: CompletionQueue,
    /// Where the bytes are.
    _region: SharedRegion,
    _peer: (QueuePair, CompletionQueue),
    _window: Option<MemoryWindow>,
}

/// What gives the initiator access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// The key of the whole region, which nothing but its end takes away.
    Region,
    /// A memory window, which can be revoked: what lent memory uses.
    Window,
}

impl BareVerb {
    pub(super) fn start(pattern: Pattern, key: Key) -> Result<BareVerb> {
        let Pattern { kind, size, batch } = pattern;
        let device = Device::open("shm")?;
        let domain = device.alloc_pd()?;
        let create = || -> Result<(QueuePair, CompletionQueue)> {
            let cq = device.create_cq(batch.max(16), None)?;
            let config = QueuePairConfig::new(QpType::Rc, cq.handle(), cq.handle());
            let qp = domain.create_qp(config.max_send_wr(batch.max(16)).max_recv_wr(1))?;
            Ok((qp, cq))
        };
        let ((mut qp, cq), (mut peer, peer_cq)) = (create()?, create()?);
        let options = ConnectOptions::default();
        let (here, there) = (qp.endpoint(), peer.endpoint());
        std::thread::scope(|scope| -> Result<()> {
            let other = scope.spawn(|| peer.connect(&here, &options));
            qp.connect(&there, &options)?;
            Ok(other.join().ok().context("connecting panicked")??)
        })?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (name, region, window) = match key {
            Key::Region => ("verb", domain.alloc_shared(size * batch, access)?, None),
            Key::Window => {
                let region = domain.alloc_shared(size * batch, Access::MW_BIND)?;
                let mut window = domain.alloc_memory_window()?;
                let part = region.slice(0, size * batch);
                let binding = WorkRequest::bind_window(&mut window, part, access).signaled(0);
                ensure!(peer.post_send_one(binding).is_ok(), "the window cannot be bound");
                ("verb, window", region, Some(window))
            }
        };
        let memory = match &window {
            Some(window) => window.remote().context("the window is not bound")?,
            None => region.remote(),
        };
        let target = |at: usize| memory.slice((at * size) as u64, size as u64);
        let targets = (0..batch).map(target).collect::<Result<_, _>>()?;
        let pool = domain.alloc_private(size * batch)?.into_pool(size);
        let buffers = (0..batch).map(|_| pool.take().context("too few buffers"));
        let mut buffers: Vec<Buffer> = buffers.collect::<Result<_>>()?;
        buffers.iter_mut().for_each(|buffer| buffer.set_len(size));
        let _peer = (peer, peer_cq);
        Ok(BareVerb {
            name,
            kind,
            targets,
            buffers,
            qp,
            cq,
            _region: region,
            _peer,
            _window: window,
        })
    }
}

impl Contender for BareVerb {
    fn name(&self) -> &'static str {
        self.name
    }

    fn once(&mut self) -> Result<()> {
        let last = self.targets.len() - 1;
        let mut doorbell = self.qp.doorbell();
        for (at, (buffer, target)) in self.buffers.drain(..).zip(&self.targets).enumerate() {
            let request: WorkRequest<'_> = match self.kind {
                Kind::Read => WorkRequest::read(buffer, *target),
                Kind::Write => WorkRequest::write(buffer, *target).unsignaled(),
            };
            let request = if at == last { request.signaled(0) } else { request };
            let posted = doorbell.post(request);
            ensure!(posted.is_ok(), "a work request was refused");
        }
        drop(doorbell);
        let mut completions = [WorkCompletion::default()];
        while self.cq.poll(&mut completions)? == 0 {
            std::hint::spin_loop();
        }
        ensure!(completions[0].status == Status::Success, "{:?}", completions[0].status);
        let mut buffers = mem::take(&mut self.buffers);
        self.qp.reclaim(&mut |buffer| buffers.push(buffer));
        ensure!(buffers.len() == self.targets.len(), "the device kept a buffer");
        self.buffers = buffers;
        Ok(())
    }
}
