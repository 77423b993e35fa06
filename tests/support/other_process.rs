//! The other process of a test: the test `process` of the same program, which is ignored otherwise.

use std::env;
use std::process::Command;

/// Runs it with what it is to do in this variable. It is alone in its process: no other test has threads there.
pub(crate) fn with_role(variable: &str, role: String) -> Command {
    let mut command = Command::new(env::current_exe().expect("this test's program"));
    command.args(["process", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(variable, role);
    command
}
