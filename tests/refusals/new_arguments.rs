#[farcall::service]
trait NotLast {
    fn get(&self, #[rpc(since = 2)] version: u64, key: u64);
}

#[farcall::service]
trait Descending {
    fn get(&self, key: u64, #[rpc(since = 3)] version: u64, #[rpc(since = 2)] limit: u64);
}

#[farcall::service]
trait First {
    fn get(&self, #[rpc(since = 1)] key: u64);
}

#[farcall::service]
trait Always {
    fn get(&self, #[rpc(default = 3)] key: u64);
}

#[farcall::service]
trait Before {
    #[rpc(since = 3)]
    fn get(&self, key: u64, #[rpc(since = 3)] version: u64);
}

#[farcall::service]
trait OtherType {
    fn get(&self, key: u64, #[rpc(since = 2, default = "none")] version: u64);
}

#[derive(serde::Serialize, serde::Deserialize, farcall::Shape)]
struct NoDefault;

#[farcall::service]
trait WithoutDefault {
    fn get(&self, key: u64, #[rpc(since = 2)] version: NoDefault);
}

#[farcall::service(require = ["get@3"])]
trait NoSuchVersion {
    fn get(&self, key: u64, #[rpc(since = 2)] version: u64);
}

fn main() {}
