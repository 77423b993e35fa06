//! An opened device: the state that its queue pairs and regions share.

use std::ffi::c_int;
use std::sync::Arc;

use rustix::io::Errno;

use super::devices;
use super::events::Events;
use super::port::{self, Port};
use super::status;
use super::sys::{
    Handle, Library, Zeroed, ibv_atomic_cap, ibv_context, ibv_device_attr,
    ibv_device_cap_flags as cap, ibv_port_attr, ibv_qp_init_attr, ibv_qp_type,
};
use crate::caps::OperationSet;
use crate::{Capabilities, OpenError, OpenOptions, Operation, PortInfo, Visibility, WriteOrder};

/// Inline sizes that are tried, the largest first: devices do not report what they take. Larger sizes than
/// the first make work requests of NICs long and posting slow.
const INLINE_BYTES: [usize; 7] = [256, 220, 188, 124, 64, 32, 0];

/// An opened device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(super) library: &'static Library,
    pub(super) raw: Handle<ibv_context>,
    pub(super) name: String,
    pub(super) port: Port,
    /// READs and atomics that a queue pair may initiate, and that it may serve.
    pub(super) rd_atomic: (u8, u8),
    pub(super) events: Events,
    caps: Capabilities,
    clock: quanta::Clock,
}

impl Context {
    /// Opens the device with that name; `None` if there is none.
    pub(crate) fn open(
        name: &str,
        options: &OpenOptions,
    ) -> Result<Option<Arc<Context>>, OpenError> {
        let Some(found) = devices::open(name) else { return Ok(None) };
        let opened = found.map_err(|errno| devices::not_opened(name, errno))?;
        let (library, raw) = (opened.library(), opened.raw());
        let system = |what| {
            move |errno: Errno| OpenError::System {
                device: name.to_owned(),
                what,
                source: errno.into(),
            }
        };
        let device = devices::query(library, raw).map_err(system("querying its attributes"))?;
        let number = options.port.unwrap_or(1);
        if !(1..=device.phys_port_cnt).contains(&number) {
            let ports = device.phys_port_cnt;
            return Err(OpenError::NoPort { device: name.to_owned(), port: number, ports });
        }
        let attributes = port::query(library, raw, number).map_err(system("querying a port"))?;
        let described = port::describe(name, number, &attributes);
        let port = port::choose(name, options, &described)?;
        let max_inline =
            largest_inline(library, raw).map_err(system("creating a trial queue pair"))?;
        let events =
            Events::start(library, raw, number).map_err(system("thread for its events"))?;
        Ok(Some(Arc::new(Context {
            library,
            raw: opened.keep(),
            name: name.to_owned(),
            caps: capabilities(&device, &attributes, max_inline),
            port,
            rd_atomic: (byte(device.max_qp_init_rd_atom), byte(device.max_qp_rd_atom)),
            events,
            clock: quanta::Clock::new(),
        })))
    }

    #[inline]
    pub(crate) fn caps(&self) -> &Capabilities {
        &self.caps
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.clock.raw())
    }

    /// The current state of all ports.
    pub(crate) fn ports(&self) -> Vec<PortInfo> {
        devices::ports(self.library, &self.raw, &self.name)
    }

    /// The port and the index of the GID in use.
    pub(crate) fn in_use(&self) -> (u8, u8) {
        (self.port.number, self.port.gid_index)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.events.stop();
        // SAFETY: everything created in the context keeps it alive, so nothing is left. The thread that read its
        // events has ended, or is this thread and no longer uses the context.
        unsafe { (self.library.close_device)(self.raw.raw()) };
    }
}

/// Finds the largest inline size by creating trial queue pairs.
fn largest_inline(library: &Library, raw: &Handle<ibv_context>) -> Result<usize, Errno> {
    // SAFETY: all handles are made, used and destroyed here, in the order that libibverbs wants.
    unsafe {
        let pd = (library.alloc_pd)(raw.raw());
        if pd.is_null() {
            return Err(status::last());
        }
        let cq = (library.create_cq)(raw.raw(), 1, std::ptr::null_mut(), std::ptr::null_mut(), 0);
        let mut largest = Err(if cq.is_null() { status::last() } else { Errno::INVAL });
        if !cq.is_null() {
            for bytes in INLINE_BYTES {
                let mut init = ibv_qp_init_attr::zeroed();
                (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, ibv_qp_type::IBV_QPT_RC);
                (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
                (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
                init.cap.max_inline_data = bytes as u32;
                let qp = (library.create_qp)(pd, &mut init);
                if !qp.is_null() {
                    (library.destroy_qp)(qp);
                    largest = Ok(bytes);
                    break;
                }
                largest = Err(status::last());
            }
            (library.destroy_cq)(cq);
        }
        (library.dealloc_pd)(pd);
        largest
    }
}

fn byte(number: c_int) -> u8 {
    number.clamp(0, 255) as u8
}

/// The vendor of kernel Soft-RoCE. It looks for the buffers of shared receives in the domain of the queue pair, and compares an
/// access through a memory window with the bounds of the region (`check_rkey` in `rxe_resp.c`).
const SOFT_ROCE_VENDOR: u32 = 0xff_ffff;

fn capabilities(device: &ibv_device_attr, port: &ibv_port_attr, max_inline: usize) -> Capabilities {
    use Operation::{
        BindWindow, CompareAndSwap, FetchAdd, InvalidateWindow, Read, Send, SendWithImm, Write,
        WriteWithImm,
    };
    let count = |number: c_int| number.max(0) as usize;
    let atomics = device.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE;
    let srq = device.max_srq > 0 && device.max_srq_wr > 0;
    let max_recv_wr = match srq {
        true => count(device.max_qp_wr).min(count(device.max_srq_wr)),
        false => count(device.max_qp_wr),
    };
    let windows = device.device_cap_flags & cap::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0 != 0;
    let max_mw = if windows { count(device.max_mw) } else { 0 };
    let mut rc = OperationSet::of(&[Send, SendWithImm, Write, WriteWithImm, Read]);
    if atomics {
        rc = rc.with(&[CompareAndSwap, FetchAdd]);
    }
    if max_mw > 0 {
        rc = rc.with(&[BindWindow, InvalidateWindow]);
    }
    let is_soft_roce = device.vendor_id == SOFT_ROCE_VENDOR;
    Capabilities {
        max_inline,
        max_sge: count(device.max_sge),
        max_send_wr: count(device.max_qp_wr),
        max_recv_wr,
        max_cqe: count(device.max_cqe),
        max_rd_atomic: count(device.max_qp_init_rd_atom.min(device.max_qp_rd_atom)),
        mtu: port::mtu_bytes(port.active_mtu as u8),
        max_message: port.max_msg_sz.into(),
        completion_payload: 0,
        atomics,
        atomics_include_cpu: device.atomic_cap == ibv_atomic_cap::IBV_ATOMIC_GLOB,
        srq,
        srq_of_other_domain: !is_soft_roce,
        flush: false,
        max_mw,
        window_bounds: !is_soft_roce,
        reads_first_word_first: !is_soft_roce,
        // Soft-RoCE checks the key of each packet, and copies it without keeping the window (`check_rkey`, `rxe_invalidate_mw`).
        invalidation_waits: !is_soft_roce,
        persistent_memory: false,
        wait: true,
        write_events: false, // A NIC tells of completions only.
        // mlx5 has them, but not through the functions of libibverbs that every device has.
        dynamic_connections: false,
        network: true,
        // The specification promises no order inside a message. A completion only says that the target's NIC is
        // responsible for the data (volume 1, sections 9.5 and 9.7.5).
        write_order: WriteOrder::Unordered,
        visibility: Visibility::CompletionMeansDelivered,
        rc,
        uc: OperationSet::of(&[Send, SendWithImm, Write, WriteWithImm]),
        ud: OperationSet::of(&[Send, SendWithImm]),
    }
}
