//! Generations of models, for operators.

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use rowmill_admission::{GenerationRequest, ModelView};

use super::Deltas;
use super::bodies::{Json, read_json};
use super::refusal::{Refusal, Told};
use crate::planning::Planning;

/// Longest wish: 256 names of dataplanes, with what is around them.
const WISH_MAX: usize = 20 << 10;

/// Models, and the generations of each that are wanted and held.
#[utoipa::path(get, path = "/v1/generations", responses((status = 200, body = Vec<ModelView>), (status = 503, body = Told, description = "There is too much to do")))]
pub(super) async fn generations(
    State(planning): State<Planning>,
    Extension(Deltas(log)): Extension<Deltas>,
) -> Result<Json<Vec<ModelView>>, Refusal> {
    let look = |planner: &rowmill_admission::Planner, now_ns: u64| planner.models(now_ns);
    let mut models = planning.look(look).await?;
    if let Some(log) = log {
        for model in &mut models {
            for of in &mut model.dataplanes {
                of.diverged = log.diverged_of(&of.dataplane, &model.model);
            }
        }
    }
    Ok(Json(models))
}

/// Has a generation of a model loaded, served or given up by all of its dataplanes. What comes of it is told by `GET /v1/generations`.
///
/// None is served, gone back to or given up while a dataplane of the model is not heard of (for 5 s), which may serve another one still, unless `without` names
/// it. Then it is left out until it is heard of again, and comes to the same by itself. One that is not heard of for a day is forgotten.
#[utoipa::path(
    post, path = "/v1/generations/{model}",
    params(("model" = String, Path, description = "The model's name")),
    request_body = GenerationRequest,
    responses(
        (status = 200, body = ModelView, description = "It is kept, and followed from now on; `wanted.without` names who is left out"),
        (status = 400, body = Told, description = "It can't be read"),
        (status = 408, body = Told, description = "The body did not come"),
        (status = 409, body = Told, description = "It can't be done now"),
        (status = 413, body = Told, description = "It is too long"),
        (status = 422, body = Told, description = "It can't be"),
        (status = 500, body = Told, description = "The state can't be written"),
        (status = 503, body = Told, description = "There is too much to do"),
    )
)]
pub(super) async fn wish(
    State(planning): State<Planning>,
    Path(model): Path<String>,
    body: Body,
) -> Result<Json<ModelView>, Refusal> {
    let request: GenerationRequest = read_json(body, WISH_MAX).await?;
    Ok(Json(planning.wish(model, request).await?))
}
