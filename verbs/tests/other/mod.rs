//! The other process of a test: an ignored test of the same program, which is told lines, and says some.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use farcall_verbs::Endpoint;

/// Before each line that the other process says: test programs print lines of their own.
const MARK: &str = "the other process: ";

/// Tells the test this line, in the other process.
pub(crate) fn say(line: &str) {
    println!("{MARK}{line}");
}

pub(crate) fn to_text(endpoint: &Endpoint) -> String {
    let bytes: Vec<String> = endpoint.to_bytes().iter().map(u8::to_string).collect();
    bytes.join(" ")
}

pub(crate) fn to_endpoint(text: &str) -> Endpoint {
    let bytes: Vec<u8> = text.split(' ').map(|byte| byte.parse().unwrap()).collect();
    Endpoint::from_bytes(&bytes).unwrap()
}

/// It is killed when this is dropped.
pub(crate) struct Other {
    pub(crate) process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    /// Runs that test in it.
    pub(crate) fn start(test: &str) -> Other {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = process.stdin.take().unwrap();
        let from = BufReader::new(process.stdout.take().unwrap());
        Other { process, to, from }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    /// The next line that it says.
    pub(crate) fn hear(&mut self) -> String {
        let said = self.from.by_ref().lines().find_map(|line| {
            let line = line.unwrap();
            line.find(MARK).map(|at| line[at + MARK.len()..].to_owned())
        });
        said.expect("the other process speaks")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
