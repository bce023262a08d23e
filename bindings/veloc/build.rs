//! Keeps the library loaded: its threads must not lose their code to a `dlclose`. It has no name of its own
//! in it: installed as `libveloc-client.so` it is that of programs of one process, and beside the library
//! with `VELOC_Init` for an MPI it is `libveloc-client-core.so`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
