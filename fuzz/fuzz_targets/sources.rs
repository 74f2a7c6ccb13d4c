//! Coverage-guided: whatever stands in a file, reading it ends with a layer or a fault, and holds some laws.
#![no_main]

#[path = "../laws.rs"]
mod laws;

libfuzzer_sys::fuzz_target!(|data: &[u8]| laws::hold(data));
