//! The limit of descriptors of a process that serves.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit: each client needs a descriptor or a few, and the usual soft limit of 1,024 is for programs that
/// use `select`. Programs that this one starts inherit it, so that only servers do this.
pub(super) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        tracing::debug!(?limit, ?raised, "raised the limit of descriptors");
    }
}
