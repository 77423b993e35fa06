//! What each end makes before a session begins, and what it tells the other end about it.

use farcall_verbs::{Capabilities, Operation, ProtectionDomain, QpType};
use serde::{Deserialize, Serialize};

use super::ablation::{Optimization, Without};
use super::port::{Peer, PortAddress};
use super::wire::{HEADER_BYTES, MAX_MTU, MESSAGE_BYTES, PART_BYTES};
use crate::contract::{SetupError, Terms};
use crate::kit::completions::POLL_BATCH;
use crate::kit::setup;

/// A datagram of this length has room for the smallest slot and both headers.
const LEAST_MTU: usize = 256;

/// Refuses devices that cannot carry this backend.
pub(crate) fn check(caps: &Capabilities) -> Result<(), SetupError> {
    if !caps.supports(QpType::Ud, Operation::Send) {
        let what = "datagram needs UD Send, which this device does not have";
        return Err(SetupError::Unsupported(what.to_owned()));
    }
    if caps.mtu < LEAST_MTU {
        return Err(SetupError::Unsupported(format!(
            "datagram needs an MTU of {LEAST_MTU} bytes; this device has {}",
            caps.mtu
        )));
    }
    if caps.max_send_wr < 2 || caps.max_recv_wr < 2 || caps.max_cqe < 4 {
        return Err(SetupError::Unsupported(format!(
            "datagram needs room for 2 work requests each way and their completions; this device has {}, {} and {}",
            caps.max_send_wr, caps.max_recv_wr, caps.max_cqe
        )));
    }
    Ok(())
}

/// Parts of large messages that one session may have under way in each direction: twice what a link holds (30 KiB at
/// 56 Gbit/s and 4 us), and less than a sender's inbox at a shm receiver.
pub(crate) const CREDITS: u32 = 16;

/// How large a queue pair and its queues are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// The longest datagram.
    pub(crate) mtu: usize,
    pub(crate) send_depth: usize,
    pub(crate) recv_depth: usize,
    /// Receives that are posted at first, in the memory of an idle client.
    pub(crate) first_receives: usize,
    /// Receives that are posted again at a time.
    pub(crate) replenish_at: usize,
    /// Completions that are polled at a time.
    pub(crate) batch: usize,
    pub(crate) without: Without,
}

/// Receives of a server thread, as in FaSST (section 5). When they run dry, that is loss.
const SERVER_RECEIVES: usize = 2048;

/// Receives of a client that has made few calls at a time, on a device in memory: some more than [`FEW_CALLS`] can be answered in.
const FIRST_RECEIVES: usize = 16;

/// Small calls at a time for which the first receives of a client suffice.
pub(crate) const FEW_CALLS: u32 = 4;

/// Datagrams that a server thread has under way.
const SERVER_SENDS: usize = 512;

impl Sizes {
    pub(crate) fn of_server(caps: &Capabilities, without: Without) -> Sizes {
        Sizes::new(SERVER_SENDS, SERVER_RECEIVES, caps, without)
    }

    /// Each call may be answered in a datagram of its own, twice; parts need some more.
    pub(crate) fn of_client(window: u32, caps: &Capabilities, without: Without) -> Sizes {
        let window = window as usize;
        let sizes = Sizes::new(window + 32, 2 * window + 4 * CREDITS as usize, caps, without);
        // A NIC rings for receives that are posted, and it is cheaper for many at a time.
        let first_receives =
            if caps.network { sizes.recv_depth } else { sizes.recv_depth.min(FIRST_RECEIVES) };
        Sizes { first_receives, ..sizes }
    }

    fn new(sends: usize, receives: usize, caps: &Capabilities, without: Without) -> Sizes {
        let recv_depth = receives.min(caps.max_recv_wr).min(caps.max_cqe / 2);
        let send_depth = sends.min(caps.max_send_wr).min(caps.max_cqe - recv_depth);
        let one_or = |optimization, usual| if without.has(optimization) { 1 } else { usual };
        Sizes {
            mtu: caps.mtu.min(MAX_MTU),
            send_depth,
            recv_depth,
            first_receives: recv_depth,
            replenish_at: one_or(Optimization::Bulk, (recv_depth / 4).clamp(1, 32)),
            batch: one_or(Optimization::Polls, POLL_BATCH),
            without,
        }
    }

    pub(crate) fn completions(&self) -> usize {
        self.send_depth + self.recv_depth
    }
}

/// Bytes of each part of a large message, if datagrams have `mtu`.
pub(crate) fn part_bytes(mtu: usize) -> usize {
    mtu - HEADER_BYTES - MESSAGE_BYTES - PART_BYTES
}

/// The longest message that goes in one datagram.
pub(crate) fn max_small(terms: &Terms, mtu: usize) -> usize {
    (terms.slot as usize).min(mtu - HEADER_BYTES) - MESSAGE_BYTES
}

/// One end's part of the handshake.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EndSetup {
    endpoint: Vec<u8>,
    qkey: u32,
    /// Its number for the session.
    session: u32,
    /// From the server: what its datagrams carry, and the client's questions for [its own](super::wire::Kind::Challenge).
    /// From the client: 0.
    pub(crate) epoch: u64,
    /// Its longest datagram; in the server's answer the session's.
    mtu: u32,
    /// From the server: parts that may be under way.
    pub(crate) credits: u32,
}

impl EndSetup {
    pub(crate) fn new(port: &PortAddress, session: u32, epoch: u64, mtu: usize) -> EndSetup {
        let endpoint = port.endpoint.to_bytes().to_vec();
        let (qkey, mtu) = (port.qkey, mtu as u32);
        EndSetup { endpoint, qkey, session, epoch, mtu, credits: CREDITS }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<EndSetup, SetupError> {
        let setup: EndSetup = setup::decode(bytes)?;
        if (setup.mtu as usize) < LEAST_MTU || setup.credits == 0 {
            return Err(SetupError::Misbehaved("its datagrams or credits are too small"));
        }
        Ok(setup)
    }

    /// That end as the peer of a session whose datagrams carry this epoch and have at most `mtu` bytes.
    pub(crate) fn peer(
        &self,
        pd: &ProtectionDomain,
        epoch: u64,
        mtu: usize,
    ) -> Result<Peer, SetupError> {
        let endpoint = setup::decode_endpoint(&self.endpoint)?;
        Ok(Peer {
            handle: pd.create_address_handle(&endpoint)?,
            qp: endpoint.qp(),
            gid: endpoint.gid(),
            qkey: self.qkey,
            session: self.session,
            epoch,
            their_epoch: epoch,
            mtu: (mtu as u32).min(self.mtu),
        })
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use farcall_verbs::Device;

    use super::*;
    use crate::contract::Config;

    fn caps() -> Capabilities {
        Device::open("shm-plain").unwrap().caps().clone()
    }

    #[test]
    fn a_queue_pair_fits_the_device() {
        let mut caps = caps();
        for limit in [4, 5, 40, 1000, 32_767] {
            caps.max_cqe = limit;
            let none = Without::of(&Config::default());
            for sizes in [Sizes::of_server(&caps, none), Sizes::of_client(64, &caps, none)] {
                assert!(sizes.completions() <= limit, "{limit}: {sizes:?}");
                assert!(sizes.send_depth >= 2 && sizes.recv_depth >= 2, "{limit}");
            }
        }
    }

    #[test]
    fn what_the_device_lacks_is_named() {
        assert!(check(&caps()).is_ok());
        let mut small = caps();
        small.mtu = 100;
        assert!(check(&small).unwrap_err().to_string().contains("256 bytes; this device has 100"));
    }

    #[test]
    fn every_least_reply_goes_in_one_datagram() {
        let terms = Terms { window: 1, slot: crate::contract::MIN_SLOT_BYTES, max_message: 1 };
        assert!(max_small(&terms, LEAST_MTU) >= farcall_core::transport::MIN_REPLY_BYTES);
        let terms = Terms { slot: crate::contract::MAX_SLOT_BYTES, ..terms };
        assert_eq!(max_small(&terms, 4096), 4096 - HEADER_BYTES - MESSAGE_BYTES);
    }
}
