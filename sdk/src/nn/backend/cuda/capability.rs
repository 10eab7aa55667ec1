//! Which of the compiled codes a driver takes on a device: machine code of the same generation, else PTX, which it compiles.

/// Compute capabilities that the kernels were compiled for, in ascending order; of the last one there is PTX, too.
const COMPILED: &str = env!("PENSIEVE_CUDA_COMPILED");

/// From this compute capability on, kernels wait for their inputs by themselves (common.cuh).
const WAITS_FROM: u32 = 90;

/// Whether the code that runs on a device of this compute capability waits for its inputs.
pub(super) fn waits_for_inputs(device: u32) -> bool {
    code_for(device, COMPILED).is_some_and(|code| code >= WAITS_FROM)
}

/// The compute capability of the code for a device.
fn code_for(device: u32, compiled: &str) -> Option<u32> {
    // A suffix, as in `90a`, is not part of the number.
    let number = |text: &str| text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic()).parse().ok();
    let codes: Vec<u32> = compiled.split(',').filter_map(number).filter(|code| *code <= device).collect();
    let native = codes.iter().copied().filter(|code| code / 10 == device / 10).max();
    let newest = compiled.rsplit(',').next().and_then(number);
    native.or_else(|| newest.filter(|code| codes.contains(code)))
}

#[cfg(test)]
mod tests {
    use super::code_for;

    #[test]
    fn machine_code_of_the_same_generation_goes_before_ptx_of_the_newest() {
        let released = "80,90,100,120";
        let taken = [(75, None), (80, Some(80)), (89, Some(80)), (90, Some(90)), (103, Some(100)), (121, Some(120))];
        for (device, code) in taken {
            assert_eq!(code_for(device, released), code, "{device}");
        }
        assert_eq!(code_for(110, released), None, "there is PTX of the newest alone");
        assert_eq!(code_for(130, released), Some(120));
        assert_eq!(code_for(90, "80"), Some(80), "by PTX, which does not wait");
        assert_eq!(code_for(86, "90"), None);
        assert_eq!(code_for(90, "90a"), Some(90));
    }
}
