#[derive(serde::Serialize, serde::Deserialize, farcall::Shape)]
struct Bytes;

#[farcall::service]
trait Store {
    fn put(&self, value: Bytes);
}

fn main() {}
