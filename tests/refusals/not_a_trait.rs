#[farcall::service]
struct Store;

#[farcall::service]
impl Store {}

#[farcall::service]
fn get() {}

fn main() {}
