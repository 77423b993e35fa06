//! A process of the suite, for every backend that an address can name; orders come on standard input.

use farcall_transports_conformance::{addresses::fixture_of_arguments, process};

fn main() {
    process::main(&fixture_of_arguments(std::env::args().skip(1)));
}
