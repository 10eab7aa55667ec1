//! Waits for the row of one job, and measures it.

use super::measures::Measures;
use crate::fleet::{EventStream, Update};
use pensieve_protocol::job::{Event, Failure, FailureCode, Finish, Usage};

/// Returns the row of a job that asked for one. Dropping the future cancels the job.
pub(crate) async fn row(mut stream: EventStream, model: &str) -> Result<(Vec<f32>, Usage), Failure> {
    let mut measures = Measures::begin(model);
    while let Some(update) = stream.next().await {
        match update {
            Update::Event(Event::Started { .. }) => measures.started(),
            Update::Event(Event::Row { values, usage }) => {
                measures.computed(usage);
                return Ok((values, usage));
            }
            Update::Event(Event::Failed(failure)) => {
                measures.failed(&failure);
                return Err(failure);
            }
            Update::Event(Event::Finished { reason, usage }) => {
                measures.finished(reason, usage);
                return Err(unfinished(reason));
            }
            Update::Event(Event::Prompt { .. } | Event::Tokens(_) | Event::Cache { .. } | Event::Timeline(_))
            | Update::Loading { .. } => {}
        }
    }
    Err(Failure::new(FailureCode::Internal, "a text's row did not come"))
}

fn unfinished(reason: Finish) -> Failure {
    match reason {
        Finish::ContextFull => Failure::new(FailureCode::TooLong, "the text does not fit into the model's memory")
            .with_help("shorten it, or raise the model's kv_budget"),
        Finish::Deadline => Failure::new(FailureCode::Busy, "the text was not read in time"),
        _ => Failure::new(FailureCode::Draining, "the text was not read, as its job was cancelled"),
    }
}
