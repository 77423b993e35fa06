//! The built-in service by which a client says that a transfer is over.

use bytes::Bytes;
use farcall_transports::remote_memory::Remote;

use super::{Bulk, BulkError};
use crate::CallContext;

/// The end of transfers. A transfer is named by its first part, which nobody else can guess.
#[crate::service(name = "farcall.bulk", crate = crate)]
pub trait BulkTransfers {
    /// Nothing is moved any more. Answers the value of an upload whose data were moved, encoded; else nothing.
    fn end(&self, transfer: Remote, is_moved: bool) -> Result<Bytes, BulkError>;
}

impl BulkTransfers for Bulk {
    fn end(&self, transfer: Remote, is_moved: bool) -> Result<Bytes, BulkError> {
        let call = CallContext::current().ok_or(BulkError::NoCall)?;
        let then = self.end_lends(&transfer, &call)?;
        if is_moved { then() } else { Ok(Bytes::new()) }
    }
}
