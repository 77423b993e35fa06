//! The service attribute of farcall: a trait in, a typed client and a dispatcher out.
