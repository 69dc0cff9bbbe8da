//! What is said where something is not done.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rowmill_admission::Refused;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::planning::Fault;

/// The body of every refusal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Told {
    /// Why, and what to do, a sentence.
    pub error: String,
}

/// A refusal: a status and a sentence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    status: StatusCode,
    told: Told,
}

impl Refusal {
    /// One with this status and sentence.
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Refusal {
        let told = Told {
            error: error.into(),
        };
        Refusal { status, told }
    }

    /// What is asked for is not there.
    pub(super) fn absent(what: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, what)
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        let status = match &fault {
            Fault::Refused(Refused::Unheard | Refused::Taken | Refused::Generations(_)) => {
                StatusCode::CONFLICT
            }
            Fault::Refused(Refused::Dataplanes(_)) | Fault::Busy | Fault::Ending => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Fault::Refused(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Fault::State(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal::new(status, fault.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let json = serde_json::to_string(&self.told).expect("it can be written to memory");
        let mut response = (
            self.status,
            [(header::CONTENT_TYPE, "application/json")],
            json,
        )
            .into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let how = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
        }
        response
    }
}
