//! The queue pair of an end, its memory, and what it says of itself.

use std::time::Duration;

use farcall_transports::contract::Terms;
use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, Endpoint, QpType, QueuePair, QueuePairConfig,
    RemoteRegion, SharedRegion,
};
use serde::{Deserialize, Serialize};

use super::Carrier;
use super::layout::stride;
use crate::{
    backends::UnconnectedEnd,
    backends::slots::forge_pool::{ClientSetup, Log, ServerSetup},
    hostile::{decode_setup, encode_setup},
    patience::patient,
};

/// Bytes that can be written at once.
const SCRATCH_BYTES: usize = 1 << 20;

/// Work requests of each kind that may be outstanding.
const DEPTH: usize = 4096;

/// Receives with buffers.
const RECEIVES_OF_SENDS: usize = 256;

impl Carrier {
    /// Receives of an end that keeps the rules.
    pub(super) fn usual_receives(self) -> usize {
        match self {
            Carrier::Writes | Carrier::Cells | Carrier::Logs => DEPTH,
            Carrier::Sends => RECEIVES_OF_SENDS,
        }
    }
}

/// What each end of `write_imm` says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct WritesSetup {
    endpoint: Vec<u8>,
    slots: RemoteRegion,
    client: u32,
}

/// What each end of `send_recv` says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SendsSetup {
    endpoint: Vec<u8>,
    client: u32,
    credits: u32,
    spare: u32,
}

/// What the server of `rfp` says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CellsSetup {
    cells: Vec<u8>,
    pub(super) responses: RemoteRegion,
    most_lines: u32,
    looks: bool,
}

/// A queue pair with receives, and slots for the other end.
pub(crate) struct RawPair {
    pub(super) carrier: Carrier,
    pub(super) qp: QueuePair,
    pub(super) cq: CompletionQueue,
    pub(super) slots: SharedRegion,
    pub(super) window: u32,
    pub(super) slot: u32,
    /// Messages into the other end's cells, and out of our own; operations sent.
    pub(super) sent: u32,
    pub(super) taken: u32,
    pub(super) operations: u32,
    /// Where an `rfp` client fetches responses: there are none.
    pub(super) responses: Option<SharedRegion>,
    pub(super) log: Option<Log>,
    /// Where a `scale` client has its log.
    pub(super) their_log: Option<RemoteRegion>,
    pub(super) scratch: SharedRegion,
    _device: Device,
}

impl RawPair {
    pub(crate) fn open(carrier: Carrier, device: &Device, terms: &Terms) -> RawPair {
        RawPair::open_with(carrier, device, terms, carrier.usual_receives())
    }

    /// As [`open`](RawPair::open), with so many receives.
    pub(super) fn open_with(
        carrier: Carrier,
        device: &Device,
        terms: &Terms,
        receives: usize,
    ) -> RawPair {
        let pd = device.alloc_pd().expect("a protection domain");
        let cq = device.create_cq(2 * DEPTH, None).expect("a completion queue");
        let slots = pd
            .alloc_shared((terms.window * stride(terms.slot)) as usize, Access::REMOTE_WRITE)
            .expect("slots");
        let scratch = pd.alloc_shared(SCRATCH_BYTES, Access::empty()).expect("scratch");
        let handle = cq.handle();
        let config = QueuePairConfig::new(QpType::Rc, &handle, &handle)
            .max_send_wr(DEPTH)
            .max_recv_wr(DEPTH);
        let mut qp = pd.create_qp(config).expect("a queue pair");
        match carrier {
            Carrier::Writes | Carrier::Cells | Carrier::Logs => {
                qp.post_recvs(0..receives as u64).expect("receives");
            }
            Carrier::Sends => {
                let size = terms.slot as usize;
                let region = pd.alloc_private(receives * size).expect("buffers");
                let buffers = region.into_pool(size);
                while let Some(buffer) = buffers.take() {
                    qp.post_recv(0, Some(buffer)).expect("a receive");
                }
            }
        }
        let Terms { window, slot, .. } = *terms;
        let responses = (carrier == Carrier::Cells).then(|| {
            let bytes = (2 * window + 1) * 64 + window * stride(slot);
            pd.alloc_shared(bytes as usize, Access::REMOTE_READ).expect("responses")
        });
        let log = (carrier == Carrier::Logs).then(|| Log::new(&pd, terms));
        let (sent, taken, operations, _device) = (0, 0, 0, device.clone());
        RawPair {
            carrier,
            qp,
            cq,
            slots,
            window,
            slot,
            sent,
            taken,
            operations,
            responses,
            log,
            their_log: None,
            scratch,
            _device,
        }
    }

    fn setup_as(&self, client: u32) -> Vec<u8> {
        let endpoint = self.qp.endpoint().to_bytes().to_vec();
        self.setup_with(endpoint, client)
    }

    pub(super) fn setup_with(&self, endpoint: Vec<u8>, client: u32) -> Vec<u8> {
        match self.carrier {
            Carrier::Writes | Carrier::Cells => {
                encode_setup(&WritesSetup { endpoint, slots: self.slots.remote(), client })
            }
            Carrier::Sends => {
                encode_setup(&SendsSetup { endpoint, client, credits: self.window, spare: 4 })
            }
            Carrier::Logs => {
                let port = WritesSetup { endpoint, slots: self.slots.remote(), client };
                let log = self.log.as_ref().expect("a log").region.remote();
                encode_setup(&ClientSetup {
                    port: encode_setup(&port),
                    log,
                    wants_pin: false,
                    caller: 0,
                })
            }
        }
    }

    /// What a server says of itself.
    pub(super) fn server_setup(&self, client: u32, terms: &Terms) -> Vec<u8> {
        let setup = self.setup_as(client);
        if let Some(log) = &self.log {
            let port = decode_setup::<ClientSetup>(&setup).port;
            let (pool, layout) = (log.pool.remote(), log.layout(terms));
            return encode_setup(&ServerSetup {
                port,
                pool,
                layout,
                key: 7,
                first_rkey: None,
                looks: true,
                is_pinned: false,
            });
        }
        match &self.responses {
            None => setup,
            Some(responses) => encode_setup(&CellsSetup {
                cells: setup,
                responses: responses.remote(),
                most_lines: 1,
                looks: true,
            }),
        }
    }

    /// Connects to the server with that setup, as [`connect`](RawPair::connect).
    pub(super) fn connect_to_server(&mut self, setup: &[u8]) -> (RemoteRegion, u32) {
        match self.carrier {
            Carrier::Cells => self.connect(&decode_setup::<CellsSetup>(setup).cells),
            Carrier::Logs => self.connect_port(&decode_setup::<ServerSetup>(setup).port),
            _ => self.connect(setup),
        }
    }

    /// Connects to the end with that setup; gives where this one may write, and the client's number.
    pub(super) fn connect(&mut self, setup: &[u8]) -> (RemoteRegion, u32) {
        if self.carrier != Carrier::Logs {
            return self.connect_port(setup);
        }
        let ClientSetup { port, log, .. } = decode_setup(setup);
        self.their_log = Some(log);
        self.connect_port(&port)
    }

    fn connect_port(&mut self, setup: &[u8]) -> (RemoteRegion, u32) {
        let (endpoint, slots, client) = match self.carrier {
            Carrier::Writes | Carrier::Cells | Carrier::Logs => {
                let WritesSetup { endpoint, slots, client } = decode_setup(setup);
                (endpoint, slots, client)
            }
            Carrier::Sends => {
                let SendsSetup { endpoint, client, .. } = decode_setup(setup);
                (endpoint, RemoteRegion::new(0, 0, 0), client)
            }
        };
        let endpoint = Endpoint::from_bytes(&endpoint).expect("an endpoint");
        let options = ConnectOptions::default().setup_timeout(patient(Duration::from_secs(5)));
        self.qp.connect(&endpoint, &options).expect("connect");
        (slots, client)
    }
}

impl RawPair {
    /// The request in the next of our cells, and its slot.
    pub(super) fn take_cell(&mut self) -> Option<(u32, Vec<u8>)> {
        let end = ((self.taken % self.window + 1) * stride(self.slot)) as usize;
        let trailer = self.slots.load_u64(end - 8);
        if trailer as u16 != (self.taken + 1) as u16 {
            return None;
        }
        self.taken += 1;
        let (slot, len) = ((trailer >> 32) as u32 & 0x3ff, (trailer >> 42) as usize);
        let mut bytes = vec![0; len];
        self.slots.copy_out(end - 8 - len.next_multiple_of(8), &mut bytes);
        Some((slot, bytes))
    }
}

impl UnconnectedEnd for RawPair {
    fn setup(&self) -> Vec<u8> {
        self.setup_as(0)
    }
}
