//! The format, byte by byte.
