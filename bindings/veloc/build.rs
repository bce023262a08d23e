//! Gives the library the name by which programs that were linked to VELOC look for it, and keeps it
//! loaded: its threads must not lose their code to a `dlclose`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libveloc-client.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
