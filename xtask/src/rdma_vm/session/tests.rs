//! Runs with shell scripts instead of machines: they print what a machine's console would.

use std::path::Path;

use super::*;

/// Enough for a shell script on a busy computer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `boot`, reports to be up as `init` does, then runs `body`; `tell` is as in `init`. All scripts of a run are
/// in `folder`, where they can see each other's files; `until_there FILE` and `until_dead PID` wait for that.
fn machine(token: &Token, folder: &Path, life: Life, boot: &str, body: &str) -> Command {
    let mut command = Command::new("sh");
    command.current_dir(folder).arg("-c").arg(format!(
        "tell() {{ echo \"rdma-vm:{}:$1\"; }}
         until_there() {{ until [ -e \"$1\" ]; do sleep 0.02; done; }}
         until_dead() {{ while kill -0 \"$1\"; do sleep 0.02; done 2>/dev/null; }}
         echo $$ >node-{}.pid
         {boot}
         tell up; read -r go; [ \"$go\" = go ] || exit; {body}",
        token.as_str(),
        life.number
    ));
    command
}

fn plan(nodes: u8) -> Plan {
    Plan { nodes, timeout: TIMEOUT, power_cut: None, power_back: None }
}

/// Runs `plan` with one script per boot of each node. Returns the result and the output.
fn play(plan: &Plan, script: impl Fn(Life) -> &'static str) -> (Result<u8>, String) {
    with_folder(plan, |token, folder, life| machine(token, folder, life, "", script(life)))
}

fn with_folder(
    plan: &Plan,
    power: impl Fn(&Token, &Path, Life) -> Command,
) -> (Result<u8>, String) {
    let token = Token::random().expect("there is /dev/urandom");
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let mut output = Vec::new();
    let status = run(plan, &token, &|life| power(&token, folder.path(), life), &mut output);
    (status, String::from_utf8(output).expect("the scripts print text"))
}

fn error(outcome: (Result<u8>, String)) -> String {
    outcome.0.expect_err("this run must fail").to_string()
}

/// Waits forever without starting a process that would outlive it.
const HANG: &str = "read -r never";

#[test]
fn the_status_and_output_of_a_failing_command_are_returned() {
    let (status, output) = play(&plan(1), |_| "echo hello; tell 'exit 3'; read -r never");
    assert_eq!(status.expect("it reported a status"), 3);
    assert_eq!(output, "hello\n");
}

#[test]
fn a_command_that_hangs_ends_at_the_timeout_and_the_message_says_so() {
    let short = Plan { timeout: Duration::from_millis(300), ..plan(1) };
    let message = error(play(&short, |_| HANG));
    assert!(message.contains("--timeout"), "{message}");
    assert!(message.contains("node 1 (COMMAND still runs)"), "{message}");
}

#[test]
fn a_command_that_prints_without_end_ends_at_the_timeout_too() {
    let short = Plan { timeout: Duration::from_millis(300), ..plan(1) };
    let message = error(play(&short, |_| "while :; do echo more; done"));
    assert!(message.contains("--timeout"), "{message}");
}

#[test]
fn a_machine_that_powers_off_silently_is_a_failure() {
    let message = error(play(&plan(1), |_| "echo all is well; exit 0"));
    assert!(message.contains("node 1 powered off without reporting a status"), "{message}");
}

/// Runs a machine that runs `boot` before it is up, and ends with status 4 if it comes so far.
fn boots(boot: &str) -> (Result<u8>, String) {
    with_folder(&plan(1), |token, folder, life| {
        machine(token, folder, life, boot, "tell 'exit 4'; read -r never")
    })
}

const PANICS: &str = "echo '[ 1.0] Kernel panic - not syncing: Fatal exception'";

#[test]
fn a_machine_whose_kernel_panics_while_it_boots_is_started_again() {
    let (status, output) =
        boots(&format!("[ -e panicked ] || {{ touch panicked; {PANICS}; exit; }}"));
    assert_eq!(status.expect("it reported a status"), 4);
    assert!(output.ends_with("[its kernel panicked while it booted; once more]\n"), "{output}");
}

#[test]
fn a_machine_whose_kernel_panics_each_time_is_a_failure() {
    let (status, output) = boots(&format!("{PANICS}; exit"));
    let message = status.expect_err("it never came up").to_string();
    assert!(message.contains("node 1 powered off without reporting a status"), "{message}");
    assert_eq!(output.matches("once more").count(), 2, "{output}");
}

#[test]
fn a_machine_that_powers_off_while_it_boots_is_not_started_again() {
    let (status, output) = boots("exit");
    status.expect_err("it never came up");
    assert_eq!(output, "");
}

#[test]
fn a_kernel_that_panics_while_the_command_runs_is_a_failure() {
    let (status, output) = play(&plan(1), |_| "echo 'Kernel panic - not syncing: x'; exit");
    status.expect_err("the command may have caused it");
    assert!(!output.contains("once more"), "{output}");
}

#[test]
fn a_status_without_the_token_of_the_run_is_output() {
    let (status, output) =
        play(&plan(1), |_| "echo rdma-vm:0:exit 0; tell 'exit 1'; read -r never");
    assert_eq!(status.expect("it reported a status"), 1);
    assert_eq!(output, "rdma-vm:0:exit 0\n");
}

#[test]
fn a_machine_that_cannot_come_up_says_why() {
    let message = error(play(&plan(1), |_| "tell 'broken no rxe'; read -r never"));
    assert_eq!(message, "node 1 cannot come up: no rxe");
}

#[test]
fn a_missing_program_is_named() {
    let token = Token::random().expect("there is /dev/urandom");
    let missing = |_| Command::new("no-such-program");
    let failure = run(&plan(1), &token, &missing, &mut Vec::new()).expect_err("it is not there");
    assert!(failure.to_string().contains("no-such-program"), "{failure}");
}

#[test]
fn the_worst_status_of_two_nodes_counts_and_lines_name_their_node() {
    let (status, output) = play(&plan(2), |life| match life.number {
        1 => "echo one; tell 'exit 0'; read -r never",
        _ => "echo two; tell 'exit 7'; read -r never",
    });
    assert_eq!(status.expect("both reported a status"), 7);
    let mut lines: Vec<&str> = output.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["node 1 | one", "node 2 | two"]);
}

#[test]
fn a_node_whose_command_ended_stays_up_for_the_other() {
    let (status, _) = play(&plan(2), |life| match life.number {
        1 => "tell 'exit 0'; touch told; read -r never",
        _ => "until_there told; kill -0 $(cat node-1.pid); tell \"exit $?\"; read -r never",
    });
    assert_eq!(status.expect("both reported a status"), 0);
}

#[test]
fn after_a_power_cut_only_the_other_node_counts() {
    let cut = Plan { power_cut: Some(Duration::from_millis(200)), ..plan(2) };
    let (status, output) = play(&cut, |life| match life.number {
        1 => HANG,
        _ => "until_dead $(cat node-1.pid); tell 'exit 5'; read -r never",
    });
    assert_eq!(status.expect("node 2 reported a status"), 5);
    assert!(output.contains("node 1 | [power cut]"), "{output}");
}

#[test]
fn a_power_cut_that_is_too_late_is_a_failure() {
    let late = Plan { power_cut: Some(TIMEOUT), ..plan(2) };
    let message = error(play(&late, |_| "tell 'exit 0'; read -r never"));
    assert!(message.contains("before the power of node 1 was cut"), "{message}");
}

#[test]
fn a_node_whose_power_is_back_boots_again_and_runs_the_command_again() {
    let plan = Plan {
        power_cut: Some(Duration::from_millis(500)),
        power_back: Some(Duration::from_millis(100)),
        ..plan(2)
    };
    let (status, output) = play(&plan, |life| match (life.number, life.boot) {
        (1, 1) => HANG,
        (1, _) => "echo again; touch again; read -r never",
        _ => "until_there again; tell 'exit 0'; read -r never",
    });
    assert_eq!(status.expect("node 2 reported a status"), 0);
    assert!(output.contains("node 1 | [power cut]\nnode 1 | [power back]\n"), "{output}");
}
