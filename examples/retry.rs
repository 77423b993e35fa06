//! A service's own error type, `?`, and a loop that repeats calls which have not run.
//!
//! ```sh
//! cargo run --release --example retry
//! ```

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farcall::{CallError, ReconnectPolicy, RpcError, RunningServer, Server, Shape};
use serde::{Deserialize, Serialize};

/// The service's own error. `thiserror` gives it the message and makes it an `Error`, so `?` works; the other derives let it travel.
#[derive(Debug, PartialEq, thiserror::Error, Serialize, Deserialize, Shape)]
enum AccountError {
    #[error("there is no account {account}")]
    NoSuchAccount { account: u64 },
    #[error("{missing} more would be needed")]
    Insufficient { missing: u64 },
}

#[farcall::service]
trait Bank {
    fn balance(&self, account: u64) -> Result<u64, AccountError>;

    /// Takes an amount out of an account. A withdrawal of the same id happens once, however often it is asked for.
    fn withdraw(&self, id: u64, account: u64, amount: u64) -> Result<u64, AccountError>;
}

#[derive(Default)]
struct Accounts {
    balances: HashMap<u64, u64>,
    done: HashSet<u64>,
}

impl Accounts {
    fn balance(&mut self, account: u64) -> Result<&mut u64, AccountError> {
        self.balances.get_mut(&account).ok_or(AccountError::NoSuchAccount { account })
    }
}

struct Vault(Mutex<Accounts>);

impl Bank for Vault {
    fn balance(&self, account: u64) -> Result<u64, AccountError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).balance(account).copied()
    }

    fn withdraw(&self, id: u64, account: u64, amount: u64) -> Result<u64, AccountError> {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_done = accounts.done.contains(&id);
        let balance = accounts.balance(account)?;
        if !is_done {
            let missing = amount.saturating_sub(*balance);
            *balance = balance.checked_sub(amount).ok_or(AccountError::Insufficient { missing })?;
        }
        let rest = *balance;
        accounts.done.insert(id);
        Ok(rest)
    }
}

/// Another attempt may succeed, and nothing has happened yet.
fn is_worth_another_attempt(error: &RpcError) -> bool {
    let is_temporary = matches!(
        error,
        RpcError::PeerGone { .. } | RpcError::Overloaded(_) | RpcError::DeadlineExceeded { .. }
    );
    is_temporary && !error.may_have_run()
}

/// Repeats a call until it has run, or until the deadline. It ends with the last outcome.
fn until_it_runs<T, E>(
    deadline: Instant,
    mut call: impl FnMut() -> Result<T, CallError<E>>,
) -> Result<T, CallError<E>> {
    let mut pause = Duration::from_millis(1);
    loop {
        match call() {
            Err(CallError::Rpc(error))
                if is_worth_another_attempt(&error) && Instant::now() + pause < deadline =>
            {
                println!("  not run: {error}; again in {pause:?}");
                thread::sleep(pause);
                pause = (2 * pause).min(Duration::from_secs(1));
            }
            outcome => return outcome,
        }
    }
}

fn serve(address: &str, vault: &Arc<Vault>) -> Result<RunningServer, Box<dyn Error>> {
    Ok(Server::builder().service(BankServer::from(vault.clone())).listen(address)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = format!("shm://retry-{}", std::process::id());
    let mut accounts = Accounts::default();
    accounts.balances.insert(7, 100);
    let vault = Arc::new(Vault(Mutex::new(accounts)));
    let server = serve(&address, &vault)?;

    // An async client waits 3 s for a lost server by itself. This one gives up early, to show the loop.
    let impatient = ReconnectPolicy::default().give_up_after(Duration::from_millis(5));
    let bank = BankClient::connect(&address).reconnect(impatient).wait()?;

    // Both errors, the service's and the call's, end a function that uses `?`.
    println!("balance: {}", bank.balance(7).wait()?);
    match bank.balance(8).wait() {
        Err(CallError::Service(error)) => println!("refused: {error}"),
        Err(CallError::Rpc(error)) => return Err(error.into()),
        Ok(balance) => println!("balance: {balance}"),
    }

    // The server goes away, and another one comes at the third attempt.
    server.shutdown();
    let mut next = None;
    let mut attempts = 0;
    let deadline = Instant::now() + Duration::from_secs(30);
    let rest = until_it_runs(deadline, || {
        attempts += 1;
        if attempts == 3 {
            next = Some(serve(&address, &vault).expect("the address is free"));
        }
        bank.withdraw(1, 7, 60).wait()
    })?;
    println!("withdrawn; {rest} are left after {attempts} attempts");

    // If a call may have run, only the service can tell. This one knows withdrawals by their ids: it may be asked again.
    assert_eq!(bank.withdraw(1, 7, 60).wait()?, rest);
    assert_eq!(rest, 40);
    if let Some(next) = next {
        next.shutdown();
    }
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn Error>> {
    main()
}
