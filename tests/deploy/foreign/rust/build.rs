//! Makes the code of proto/, as it is, by the protoc in the folder above.

use std::io;

fn main() -> io::Result<()> {
    let proto = "../../../../proto".to_string();
    let files = ["control", "messaging", "opaque"].map(|name| format!("{proto}/tuplewire/v1/{name}.proto"));
    std::env::set_var("PROTOC", concat!(env!("CARGO_MANIFEST_DIR"), "/../protoc"));
    tonic_prost_build::configure().build_server(false).compile_protos(&files, &[proto])
}
