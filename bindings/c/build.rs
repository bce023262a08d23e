//! Names the version of the interface in the shared library, and keeps it loaded: its threads must not
//! lose their code to a `dlclose`.

/// Raised whenever a program that was compiled before would no longer work.
const ABI: u32 = 0;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liboutlive.so.{ABI}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
