#[derive(serde::Serialize, serde::Deserialize)]
struct Bytes;

#[farcall::service]
trait Store {
    fn put(&self, value: Bytes);
}

fn main() {}
