//! Tells a device that fails from one that is lost. A driver that has seen a fault may refuse everything after it (macOS:
//! "Ignored (for causing prior/excessive GPU errors)"), and only another process computes on that device again.

use pensieve_protocol::job::{Failure, FailureCode};

/// After this many failures in a row the device is at fault, not a request.
const IN_A_ROW_MAX: u32 = 3;

/// The device's failures since it last computed something.
#[derive(Debug)]
pub struct DeviceFailures {
    /// False for the processor, which no process can lose: what fails there by this name is a defect of the plugin.
    counts: bool,
    in_a_row: u32,
    last: String,
}

impl DeviceFailures {
    pub fn of(device: &str) -> Self {
        Self { counts: !device.starts_with("cpu"), in_a_row: 0, last: String::new() }
    }

    /// Takes in how a computation ended. Failures of other kinds say nothing about the device.
    pub fn note<T>(&mut self, outcome: &Result<T, Failure>) {
        match outcome {
            Ok(_) => self.in_a_row = 0,
            Err(failure) if self.counts && failure.code == FailureCode::Device => {
                self.in_a_row = self.in_a_row.saturating_add(1);
                self.last.clone_from(&failure.message);
            }
            Err(_) => {}
        }
    }

    /// The reason to end the process, once there is one.
    pub fn lost(&self) -> Option<Failure> {
        (self.in_a_row >= IN_A_ROW_MAX).then(|| {
            let message = format!("its device failed {} times in a row, at last with: {}", self.in_a_row, self.last);
            Failure::new(FailureCode::Device, message).with_help("ask again: the model is being loaded anew")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(outcomes: &str) -> Option<String> {
        said_of("metal:0", outcomes)
    }

    /// The words about a device whose computations end like this: `d` by its failure, `p` by the plugin's, `.` well.
    fn said_of(device: &str, outcomes: &str) -> Option<String> {
        let mut failures = DeviceFailures::of(device);
        for (number, outcome) in outcomes.chars().enumerate() {
            let failed = |code| Err(Failure::new(code, format!("fault {number}")));
            failures.note(&match outcome {
                'd' => failed(FailureCode::Device),
                'p' => failed(FailureCode::Plugin),
                _ => Ok(()),
            });
        }
        failures.lost().map(|failure| failure.message)
    }

    #[test]
    fn a_device_that_fails_and_fails_again_is_lost() {
        let lost = said("ddd").expect("three in a row");
        assert!(lost.contains("3 times in a row, at last with: fault 2"), "{lost}");
        for outcomes in ["", "dd", "dd.d", "d.d.d.d.dd", "ppppp", "dpd"] {
            assert_eq!(said(outcomes), None, "{outcomes}");
        }
        assert!(said("dpdpd").is_some(), "another's failure is no success");
        assert!(said(".dd.ddd").is_some());
        assert_eq!(said_of("cpu", "dddddd"), None);
    }
}
