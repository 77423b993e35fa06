//! The service attribute of farcall (a trait in, a typed client and a dispatcher out) and the derive of shapes.
//!
//! Use them as `farcall::service` and `farcall::Shape`; what they make names the crate `farcall` for everything it needs.
#![forbid(unsafe_code)]

mod derive;
mod emit;
mod forms;
mod hash;
mod model;
mod options;
mod refuse;
mod shapes;
mod versions;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ItemTrait;

/// Makes a service of a trait.
///
/// ```ignore
/// #[farcall::service]
/// pub trait Kv {
///     /// The value of a key, if it has one.
///     fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;
///     /// All keys with this prefix.
///     async fn scan(&self, prefix: Bytes) -> Result<Vec<Bytes>, KvError>;
/// }
/// ```
///
/// A server implements the trait. The attribute also generates
///
/// - `KvServer<S>`, which serves an implementation `S` of it: `KvServer::new(store)`;
/// - `KvClient`, whose methods are futures for any executor, and can also block the thread: `Clone`, `Send`, `Sync`;
/// - `KvPollClient`, for a thread that polls its own connection. It has each method twice: as a call that waits, and as
///   `start_...`, to have many calls outstanding.
///
/// # Methods
///
/// A method takes `&self` and up to eight arguments.
///
/// - A plain `fn` runs to completion on the server's thread. It may borrow its arguments from the message (`&[u8]`, `&str`, or
///   a type of your own with a lifetime). It may also take `&T` of another type, and `&[T]`.
/// - An `async fn` may wait, so it owns its arguments. It runs on the executor of its server thread, and its future need not
///   be `Send`.
///
/// For a method that returns `Result<T, E>`, the caller gets `Result<T, CallError<E>>`; for any other, `Result<T, RpcError>`.
///
/// All types need serde's `Serialize` and `Deserialize`, and `farcall::Shape`. Byte strings (`&[u8]`, `Vec<u8>`, `Bytes`, `ByteBuf`, `[u8; N]`, also
/// within `Option`, `Vec` and tuples) are recognized by these names and copied whole, without serde. Under an alias they work
/// too, one byte at a time.
///
/// # Methods on the wire
///
/// A method has an id: a hash of the names of the service and the method, so the order of methods does not matter.
/// `#[rpc(id = 7)]` on a method sets the id, which keeps an old one when the method is renamed. When a client connects, it
/// compares its methods with the server's, by their ids and shapes. A call of a method that the server lacks, or declares with
/// another shape, ends in `RpcError::NoSuchMethod` without being sent; the others work. Doc comments, the order of methods and the
/// name of a method's only argument do not count. `#[rpc(name = "key")]` on an argument keeps an old name in the shape.
///
/// # New arguments
///
/// A method can get new arguments at its end. Clients that were built without them go on calling it:
///
/// ```ignore
/// fn get(&self, key: &[u8], #[rpc(since = 2, default = 0)] version: u64) -> Option<Bytes>;
/// ```
///
/// `since` is the version of the method that added the argument; the first version is 1. For a call of an older version, the
/// server passes `default`, or `Default::default()`. An argument that is passed by reference has the default of the type
/// that is read: `T` for `&T`, `Vec<T>` for `&[T]`.
///
/// At an older server, a client calls the newest version that the server has, if the arguments that the server does not
/// know have their defaults. Otherwise the call ends in `RpcError::NoSuchMethod` with `MethodMismatch::NewerArgument`, and
/// is not sent: an older server would run it as if the argument had its default.
///
/// `#[rpc(since = 2)]` on the method itself: version 1 is no longer served. The arguments that version 2 added then have no
/// `since`. Metrics and errors name the second version `get@2`.
///
/// # Options
///
/// On the trait: `#[farcall::service(name = "kv")]` sets the service's name for the handshake and the ids (default: the trait's
/// name); `#[farcall::service(any_thread)]` allows the calls to run on any thread of a server, in any order, see
/// `ServerBuilder::work_stealing`; `#[farcall::service(crate = path)]` sets the path of the crate `farcall`, if it was renamed;
/// `#[farcall::service(opaque(uuid::Uuid = "uuid::Uuid 1"))]` names the encoding of a type that has no `Shape`, where it is written
/// so. `#[rpc(opaque = "...")]` does it for one argument.
/// `#[farcall::service(require = ["get", "put"])]`: a client does not connect to a server that lacks one of these methods or
/// declares it with other types. `get@2` requires version 2 or a newer one.
/// `#[farcall::service(reserved = ["old", 7])]` refuses methods with the name or the id of one that was removed.
/// On a method: `#[rpc(id = 7)]` and `#[rpc(since = 2)]`, see above, and `#[rpc(idempotent)]`.
///
/// # Methods that may run more than once
///
/// A handler runs at most once per call, whatever the network loses or duplicates. `#[rpc(idempotent)]` gives that up for one
/// method: one call of it may run again, at the same time as later calls, and even after its caller has had the answer. Mark
/// methods that only read, and those whose repetition cannot undo a later call: "raise the version to 7", but not "set the
/// value to 7", which could overwrite a later 8.
///
/// Over `backend=datagram` the server then remembers neither the call nor its answer: if the answer is lost, the call runs
/// again. While an `async fn` waits, its slot in the client's window is occupied, so a retransmission does not start it a
/// second time. Backends on reliable connections run each call once in any case.
///
/// An error of such a call tells about its last run only: even if `may_have_run()` is `false`, it may have run before. It can
/// be called again without harm in any case.
#[proc_macro_attribute]
pub fn service(
    options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand(options.into(), item.into()).into()
}

/// Makes a type's shape of its fields or variants, by which client and server know that they encode it in the same way.
///
/// ```ignore
/// #[derive(Serialize, Deserialize, farcall::Shape)]
/// struct Payment {
///     from: u64,
///     to: u64,
///     #[rpc(opaque = "uuid::Uuid 1")]
///     id: Uuid,
/// }
/// ```
///
/// The shape has the names, the order and the shapes of the fields, or of the variants with their fields. It does not have
/// the type's own name. A tuple struct of one field has the field's shape, as it has its encoding. Every type within must
/// have a shape, except where `#[rpc(opaque = "...")]` on a field names its encoding: then the name is its shape.
/// `#[rpc(opaque(uuid::Uuid = "uuid::Uuid 1"))]` on the type holds for all its fields, also within `Option<Uuid>` and
/// others; the type must be written as it is there.
///
/// A type that contains itself, as in `Vec<Tree>`, is recognized by its name or `Self`. Of two types that contain each
/// other, one field needs `#[rpc(opaque = "...")]`.
///
/// # serde's attributes
///
/// `rename` keeps the old name of a field or variant in the shape. `skip`, `transparent`, and `from` with `into` are taken
/// into account. What farcall's codec cannot encode is refused: `flatten`, `tag`, `untagged`, `skip_serializing_if`. A
/// field with `with = "..."` needs `#[rpc(opaque = "...")]`, and a type whose `Serialize` is written by hand needs
/// it as a whole: `#[derive(farcall::Shape)] #[rpc(opaque = "my::Id 1")]`.
///
/// `#[rpc(crate = path)]` on the type is the path of the crate `farcall`, if it was renamed.
#[proc_macro_derive(Shape, attributes(rpc, serde))]
pub fn shape(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    derive::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a type that later versions may add fields or variants to, while ends of older versions are in use.
///
/// ```ignore
/// #[derive(farcall::Grow)]
/// struct Options {
///     limit: u32,
///     #[rpc(since = 2, default = true)]
///     sorted: bool,
///     #[rpc(since = 3)]
///     prefix: String,
/// }
///
/// #[derive(farcall::Grow)]
/// enum Event {
///     Opened { at: u64 },
///     #[rpc(since = 2)]
///     Closed,
///     #[rpc(unknown)]
///     Unknown,
/// }
/// ```
///
/// It implements serde's `Serialize` and `Deserialize` and farcall's `Shape`, and takes the place of their derives; the crate
/// `serde` is not needed for it. A type must have it from its first version on, because its values have their length in front.
///
/// - A struct has named fields. One that a later version adds comes last, with `since`. A reader that does not know it skips
///   it. For a value without it, a reader takes `default`, or `Default::default()`.
/// - An enum ends with a variant without fields that is marked `#[rpc(unknown)]`. New variants come in front of it, with
///   `since`. A reader that does not know a variant reads the marked one. If it sends that on, what it stood for is lost, and
///   its readers get the marked one too.
///
/// The shape is that of the first version: what is added does not change it, so client and server do not compare it.
/// Never change, reorder or remove what was added: ends would misread each other. `farcall compat` finds such changes in lock
/// files.
///
/// serde's attributes work as with its derives, and the options of [`Shape`](derive@Shape) as there. The type may have
/// lifetimes, but no other parameters. Formats other than farcall's codec ignore the length; those with names, such as JSON, can read
/// values of other versions as well.
#[proc_macro_derive(Grow, attributes(rpc, serde))]
pub fn grow(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    derive::grow::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

fn expand(options: TokenStream, item: TokenStream) -> TokenStream {
    let mut input: ItemTrait = match syn::parse2(item.clone()) {
        Ok(input) => input,
        Err(error) => {
            let error = refuse::not_a_trait(&item).unwrap_or(error).into_compile_error();
            return quote!(#error #item);
        }
    };
    let model = options::of_service(options, &input)
        .and_then(|options| model::Service::new(options, &input));
    options::strip(&mut input);
    match model {
        Ok(model) => emit::all(&model, &input),
        // The trait goes on as it is, so that what uses it does not fail as well.
        Err(error) => {
            let error = error.into_compile_error();
            let original = input.into_token_stream();
            quote!(#original #error)
        }
    }
}
