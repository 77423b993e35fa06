//! What `#[farcall::service]` refuses, and how it says so: each file beside its message.

#[test]
fn each_refusal_tells_the_mend() {
    trybuild::TestCases::new().compile_fail("tests/refusals/*.rs");
}
