//! Fuzz targets of what an end says of itself in the handshake.

use bolero::check;

use super::*;
use crate::corpus::is_kept;

/// Any bytes are a setup that can be used, or an error; and the same of the endpoint in it.
#[test]
fn any_bytes_are_a_setup_or_an_error() {
    check!().for_each(|bytes: &[u8]| {
        if let Ok(setup) = EndSetup::from_bytes(bytes) {
            assert!(setup.mtu as usize >= LEAST_MTU && setup.credits > 0);
            let again = EndSetup::from_bytes(&setup.to_bytes()).expect("it was read before");
            assert_eq!(again.to_bytes(), setup.to_bytes());
            drop(setup::decode_endpoint(&setup.endpoint));
        }
        if let Ok(endpoint) = setup::decode_endpoint(bytes) {
            assert_eq!(endpoint.to_bytes(), bytes);
        }
    });
}

#[test]
fn the_corpus_has_a_setup() {
    let endpoint = vec![1, 1, 0, 0, 7, 7, 7, 7];
    let setup = EndSetup { endpoint, qkey: 5, session: 3, epoch: 9, mtu: 4096, credits: CREDITS };
    let bytes = setup.to_bytes();
    assert!(EndSetup::from_bytes(&bytes).is_ok());
    let target = "datagram::setup::fuzz::any_bytes_are_a_setup_or_an_error";
    is_kept("src/datagram/setup", target, [("setup".to_owned(), bytes)]);
}
