//! The way the suite crosses from one machine to another, tried on one.

use std::net::TcpListener;

use farcall_verbs_conformance::{Fixture, Machines, Verdict, cases, serve};

#[test]
fn cases_run_with_their_target_behind_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let server = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || serve(&listener, "shm"));
    let fixture = Machines::new("shm", server);
    let mut played = 0;
    for case in cases().iter().filter(|case| case.name.starts_with("ordering::")) {
        assert_eq!(fixture.run(case), Verdict::Passed, "{}", case.name);
        played += 1;
    }
    assert!(played > 0);
}

#[test]
fn a_machine_that_is_not_there_is_a_failure_that_names_it() {
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("it is bound")
    };
    match Machines::new("shm", nobody).run(&cases()[0]) {
        Verdict::Failed(why) => assert!(why.contains(&nobody.to_string()), "{why}"),
        other => panic!("{other}"),
    }
}
