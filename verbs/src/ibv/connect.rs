//! From INIT to READY TO SEND.

use rustix::io::Errno;

use super::address_handle::address_attributes;
use super::context::Context;
use super::endpoint::IbvEndpoint;
use super::port;
use super::queue_pair::QueuePair;
use super::status;
use super::sys::{Zeroed, ibv_port_state, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_state};
use super::timers::{RETRIES, rnr_code, timeout_code};
use crate::{ConnectError, ConnectOptions, QpState, QpType};

/// The `rnr_retry` value that means: retry forever.
const RNR_RETRY_FOREVER: u8 = 7;

/// Checks that a peer's port can be in one network with ours.
pub(super) fn check_network(context: &Context, peer: &IbvEndpoint) -> Result<(), ConnectError> {
    let ours = &context.port;
    if (peer.ethernet != 0) != ours.ethernet {
        return Err(ConnectError::Mismatch("one side's port is Ethernet, the other's InfiniBand"));
    }
    if ours.ethernet && port::ipv4(&peer.gid).is_some() != port::ipv4(&ours.gid).is_some() {
        return Err(ConnectError::Mismatch(
            "one side's GID is IPv4, the other's is not; choose GIDs of one kind by gid_index",
        ));
    }
    Ok(())
}

/// The largest packet that both sides take.
fn path_mtu(ours: u8, theirs: u8) -> Result<u32, ConnectError> {
    match ours.min(theirs) {
        mtu @ 1..=5 => Ok(mtu.into()),
        _ => Err(ConnectError::Mismatch("its MTU is not one of the specification")),
    }
}

impl QueuePair {
    pub(crate) fn connect(
        &mut self,
        peer: &IbvEndpoint,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        let (ty, context) = (self.shared.ty, &self.domain.context);
        if ty == QpType::Ud {
            return Err(ConnectError::Type(ty));
        }
        if self.state() != QpState::Init {
            return Err(ConnectError::State(self.state()));
        }
        if peer.ty != ty as u8 {
            return Err(ConnectError::Mismatch("it names a queue pair of another type"));
        }
        check_network(context, peer)?;
        check_port(context)?;
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attributes.ah_attr = address_attributes(context, &peer.gid, peer.lid);
        attributes.path_mtu = path_mtu(context.port.mtu, peer.mtu)?;
        attributes.dest_qp_num = peer.qp & 0x00ff_ffff;
        attributes.rq_psn = peer.psn & 0x00ff_ffff;
        let mut wanted = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN;
        if ty == QpType::Rc {
            attributes.max_dest_rd_atomic = context.rd_atomic.1;
            attributes.min_rnr_timer = rnr_code(options.rnr_timer_ns);
            wanted |= mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
        }
        self.step(&mut attributes, wanted, QpState::ReadyToReceive)
            .map_err(|errno| self.refusal(&peer.gid, "ready to receive", errno))?;
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attributes.sq_psn = self.psn;
        let mut wanted = mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN;
        if ty == QpType::Rc {
            attributes.timeout = timeout_code(options.retry_timeout_ns);
            attributes.retry_cnt = RETRIES;
            attributes.rnr_retry = options.rnr_retry.min(RNR_RETRY_FOREVER);
            attributes.max_rd_atomic = self.domain.context.rd_atomic.0.min(peer.serves);
            wanted |= mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.step(&mut attributes, wanted, QpState::ReadyToSend)
            .map_err(|errno| self.refusal(&peer.gid, "ready to send", errno))
    }

    pub(crate) fn activate(&mut self, qkey: u32) -> Result<(), ConnectError> {
        if self.shared.ty != QpType::Ud {
            return Err(ConnectError::Type(self.shared.ty));
        }
        if self.state() != QpState::Init {
            return Err(ConnectError::State(self.state()));
        }
        let own = self.domain.context.port.gid;
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attributes.qkey = qkey;
        let wanted = mask::IBV_QP_STATE | mask::IBV_QP_QKEY;
        self.step(&mut attributes, wanted, QpState::ReadyToReceive)
            .map_err(|errno| self.refusal(&own, "ready to receive", errno))?;
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attributes.sq_psn = self.psn;
        let wanted = mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN;
        self.step(&mut attributes, wanted, QpState::ReadyToSend)
            .map_err(|errno| self.refusal(&own, "ready to send", errno))
    }

    fn step(&self, attributes: &mut ibv_qp_attr, wanted: mask, to: QpState) -> Result<(), Errno> {
        self.modify(attributes, wanted)?;
        let from = match to {
            QpState::ReadyToReceive => QpState::Init,
            _ => QpState::ReadyToReceive,
        };
        // An error that happened meanwhile is kept; the device has it too.
        self.shared.advance(from, to);
        Ok(())
    }

    fn refusal(&self, gid: &[u8; 16], step: &'static str, errno: Errno) -> ConnectError {
        match self.state() {
            QpState::Error => ConnectError::State(QpState::Error),
            _ => status::connecting(gid, step, errno),
        }
    }
}

/// Fails early without a link: no message could arrive.
fn check_port(context: &Context) -> Result<(), ConnectError> {
    let number = context.port.number;
    let attributes = port::query(context.library, &context.raw, number).map_err(|errno| {
        ConnectError::System { what: "asking for the port", source: errno.into() }
    })?;
    match attributes.state {
        ibv_port_state::IBV_PORT_DOWN | ibv_port_state::IBV_PORT_NOP => {
            Err(ConnectError::PortDown { device: context.name.clone(), port: number })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_mtu_is_used_and_an_invalid_one_is_refused() {
        assert_eq!(path_mtu(5, 3).unwrap(), 3);
        assert_eq!(path_mtu(3, 5).unwrap(), 3);
        assert_eq!(path_mtu(5, 200).unwrap(), 5);
        assert!(matches!(path_mtu(5, 0), Err(ConnectError::Mismatch(_))));
    }
}
