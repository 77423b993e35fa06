//! Where the memory of a device's resources is allocated.

use std::marker::PhantomData;
use std::ptr;

use libc::{
    MPOL_DEFAULT, MPOL_PREFERRED, SYS_get_mempolicy, SYS_set_mempolicy, c_int, c_ulong, syscall,
};

/// Most nodes of a kernel (`MAX_NUMNODES` of the usual ones).
const MAX_NODES: usize = 1024;

const MASK_WORDS: usize = MAX_NODES / c_ulong::BITS as usize;

/// The nodes of a policy, one bit each.
type Mask = [c_ulong; MASK_WORDS];

/// What the calling thread allocates comes from a node, if there is memory left there, until this is dropped.
///
/// It does nothing if the thread has a policy already, or the system does not let it have one (as in some containers): the memory is
/// then placed as without.
#[derive(Debug)]
pub(crate) struct PreferredNode {
    is_set: bool,
    /// The policy is the thread's.
    _not_sent: PhantomData<*const ()>,
}

impl PreferredNode {
    /// Prefers this node; none: changes nothing.
    pub(crate) fn of(node: Option<usize>) -> PreferredNode {
        let wanted = node.filter(|node| *node < MAX_NODES && current() == Some(MPOL_DEFAULT));
        let is_set = wanted.is_some_and(|node| {
            let mut mask: Mask = [0; MASK_WORDS];
            mask[node / c_ulong::BITS as usize] |= 1 << (node % c_ulong::BITS as usize);
            set(MPOL_PREFERRED, Some(&mask))
        });
        PreferredNode { is_set, _not_sent: PhantomData }
    }
}

impl Drop for PreferredNode {
    fn drop(&mut self) {
        if self.is_set {
            // As it was before.
            set(MPOL_DEFAULT, None);
        }
    }
}

/// The policy of this thread; `None` if the system does not say.
fn current() -> Option<c_int> {
    let mut mode: c_int = 0;
    let none = ptr::null_mut::<c_ulong>();
    // SAFETY: the kernel writes the mode, which is ours, and no mask. It reads no memory.
    let code = unsafe { syscall(SYS_get_mempolicy, &raw mut mode, none, 0_usize, none, 0_usize) };
    (code == 0).then_some(mode)
}

/// Sets the policy of this thread. Returns whether the system does that.
fn set(mode: c_int, nodes: Option<&Mask>) -> bool {
    let (mask, bits) = match nodes {
        // The kernel takes one bit fewer than it is told.
        Some(mask) => (mask.as_ptr(), MAX_NODES + 1),
        None => (ptr::null(), 0),
    };
    // SAFETY: the kernel reads the bits of the mask, which is as long as it is told rounded to whole words: the last bit of
    // the count is not read. It changes only where pages that this thread touches first are allocated.
    unsafe { syscall(SYS_set_mempolicy, mode, mask, bits) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policies are a thread's.
    fn on_a_thread(run: impl FnOnce() + Send + 'static) {
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn a_node_is_preferred_only_as_long_as_it_is_asked_for() {
        on_a_thread(|| {
            let Some(before) = current() else { return };
            assert_eq!(before, MPOL_DEFAULT);
            let near = PreferredNode::of(Some(0));
            if near.is_set {
                assert_eq!(current(), Some(MPOL_PREFERRED));
                let inner = PreferredNode::of(Some(0));
                drop(inner);
                assert_eq!(current(), Some(MPOL_PREFERRED), "an inner one changes nothing");
            }
            drop(near);
            assert_eq!(current(), Some(MPOL_DEFAULT));
        });
    }

    #[test]
    fn a_policy_of_the_program_is_left_alone() {
        on_a_thread(|| {
            // MPOL_LOCAL needs no nodes.
            if !set(libc::MPOL_LOCAL, None) {
                return;
            }
            drop(PreferredNode::of(Some(0)));
            assert_eq!(current(), Some(libc::MPOL_LOCAL));
        });
    }

    #[test]
    fn nodes_that_cannot_be_change_nothing() {
        on_a_thread(|| {
            for node in [None, Some(MAX_NODES), Some(MAX_NODES - 1)] {
                let near = PreferredNode::of(node);
                assert!(!near.is_set, "{node:?}");
            }
        });
    }
}
