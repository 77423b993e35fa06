//! Invalid uses of `#[farcall::service]` and their error messages: each file has its message next to it.

#[test]
fn each_error_message_says_how_to_fix_it() {
    trybuild::TestCases::new().compile_fail("tests/refusals/*.rs");
}
