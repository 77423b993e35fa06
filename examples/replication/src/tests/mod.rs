//! Tests of the whole protocol.
