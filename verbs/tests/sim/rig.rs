//! A test rig of two nodes with a queue pair each.

use farcall_verbs::sim::{NodeId, Sim, SimConfig};
use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, ProtectionDomain, QpType, QueuePair,
    QueuePairConfig, SharedRegion, Status, WorkCompletion, WorkRequest,
};

/// A peer that does not answer counts as dead after this time.
pub(crate) const RETRY_TIMEOUT_NS: u64 = 800_000;

/// One node and its resources.
pub(crate) struct End {
    pub(crate) node: NodeId,
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair,
    /// 64 KiB that the peer may access.
    pub(crate) region: SharedRegion,
}

impl End {
    pub(crate) fn new(sim: &Sim, node: NodeId, ty: QpType) -> End {
        End::within(sim, node, ty, Access::all().difference(Access::RELAXED_ORDERING))
    }

    pub(crate) fn within(sim: &Sim, node: NodeId, ty: QpType, access: Access) -> End {
        let device = sim.node(node).device();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(4096, None).unwrap();
        let config = QueuePairConfig::new(ty, &cq, &cq).max_send_wr(1024).max_recv_wr(1024);
        let qp = pd.create_qp(config).unwrap();
        let region = pd.alloc_shared(1 << 16, access).unwrap();
        End { node, device, pd, cq, qp, region }
    }

    pub(crate) fn post<'a>(&mut self, request: impl Into<WorkRequest<'a>>) {
        self.qp.post_send_one(request).map_err(|(error, _)| error).unwrap();
    }

    /// All available completions.
    pub(crate) fn completions(&mut self) -> Vec<WorkCompletion> {
        let mut all = Vec::new();
        loop {
            let mut batch: [WorkCompletion; 32] = Default::default();
            match self.cq.poll(&mut batch).unwrap() {
                0 => return all,
                count => all.extend(batch.into_iter().take(count)),
            }
        }
    }

    /// The statuses of all available completions.
    pub(crate) fn statuses(&mut self) -> Vec<Status> {
        self.completions().into_iter().map(|completion| completion.status).collect()
    }
}

pub(crate) fn options() -> ConnectOptions {
    ConnectOptions::default().retry_timeout_ns(RETRY_TIMEOUT_NS).rnr_timer_ns(5_000)
}

/// A rack of two nodes whose queue pairs are connected.
pub(crate) fn two(seed: u64, config: SimConfig, ty: QpType) -> (Sim, End, End) {
    let mut sim = Sim::with_config(seed, config);
    let nodes = [sim.add_node(), sim.add_node()];
    let (mut a, mut b) = (End::new(&sim, nodes[0], ty), End::new(&sim, nodes[1], ty));
    join(&mut a, &mut b);
    (sim, a, b)
}

pub(crate) fn join(a: &mut End, b: &mut End) {
    a.qp.connect(&b.qp.endpoint(), &options()).unwrap();
    b.qp.connect(&a.qp.endpoint(), &options()).unwrap();
}
