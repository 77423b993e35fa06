use farcall::Shape;

#[derive(Shape)]
#[serde(tag = "kind")]
enum Tagged {}

#[derive(Shape)]
struct Flattened {
    #[serde(flatten)]
    rest: u8,
}

#[derive(Shape)]
struct Sometimes {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<u8>,
}

#[derive(Shape)]
struct With {
    #[serde(with = "hex")]
    value: u32,
}

#[derive(Shape)]
struct OneSided {
    #[serde(skip_serializing)]
    value: u32,
}

#[derive(Shape)]
#[serde(into = "u32")]
struct Into(u32);

#[derive(Shape)]
enum Skipped {
    #[serde(skip)]
    First,
    Second,
}

#[derive(Shape)]
union Either {
    a: u8,
    b: i8,
}

#[derive(Shape)]
#[rpc(grow)]
struct Unknown {
    #[rpc(since)]
    a: u8,
}

#[derive(Shape)]
struct UnknownOnField {
    #[rpc(since)]
    a: u8,
}

#[derive(Shape)]
enum OnVariant {
    #[rpc(opaque = "x")]
    A,
}

#[derive(Shape)]
#[rpc(opaque = "")]
struct Unnamed;

#[farcall::service]
trait Arguments {
    fn unknown(&self, #[rpc(hidden)] a: u8);
    fn twice(&self, #[rpc(name = "a", name = "b")] a: u8);
    fn foreign(&self, #[allow(unused)] a: u8);
}

fn main() {}
