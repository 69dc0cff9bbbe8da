//! Who may what: dataplanes what is theirs, operators everything else.

use axum::Extension;
use axum::extract::{RawPathParams, Request};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rowmill_trust::{Identity, Role};
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, OpenApi, Ref, RefOr, Response as Described, ResponseBuilder,
};

use super::bodies::swallow;
use super::refusal::Refusal;
use crate::trust::Visitor;

/// Lets a dataplane at what is its own by name.
pub(super) async fn dataplanes(
    Extension(visitor): Extension<Visitor>,
    path: RawPathParams,
    request: Request,
    next: Next,
) -> Response {
    let name = path.iter().find(|(key, _)| *key == "name");
    let name = name.map_or("", |(_, name)| name);
    let may = |identity: &Identity| identity.role == Role::Dataplane && identity.name == name;
    let wanted = format!("dataplane {name}");
    pass(&visitor, may, &wanted, request, next).await
}

/// Lets operators in.
pub(super) async fn operators(
    Extension(visitor): Extension<Visitor>,
    request: Request,
    next: Next,
) -> Response {
    let may = |identity: &Identity| identity.role == Role::Operator;
    pass(&visitor, may, "operators", request, next).await
}

async fn pass(
    visitor: &Visitor,
    may: impl Fn(&Identity) -> bool,
    wanted: &str,
    request: Request,
    next: Next,
) -> Response {
    match allowed(visitor, may, wanted, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => {
            // Who is refused while it sends would not see why.
            swallow(request.into_body()).await;
            refusal.into_response()
        }
    }
}

fn allowed(
    visitor: &Visitor,
    may: impl Fn(&Identity) -> bool,
    wanted: &str,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let authorization = headers.get(AUTHORIZATION).map(|header| header.as_bytes());
    let identity = visitor
        .identity(authorization)
        .map_err(|why| Refusal::new(StatusCode::UNAUTHORIZED, why.to_string()))?;
    match identity.filter(|identity| !may(identity)) {
        None => Ok(()),
        Some(other) => Err(Refusal::new(
            StatusCode::FORBIDDEN,
            format!("this is for {wanted}, and not for {other}"),
        )),
    }
}

/// Describes all this: two ways to say who one is, either of which will do, none where nobody is asked; and the refusals of each operation.
pub(super) fn describe(interface: &mut OpenApi) {
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token of tokens_file, made by `rowmill token new`"))
        .build();
    let certificate = SecurityScheme::MutualTls {
        description: Some(
            "A client certificate whose subject alternative names have one URI `rowmill://dataplane/NAME` or `rowmill://operator/NAME`"
                .into(),
        ),
        deprecated: None,
        extensions: None,
    };
    let components = interface.components.get_or_insert_default();
    components.add_security_scheme("certificate", certificate);
    components.add_security_scheme("token", SecurityScheme::Http(token));
    let none: [&str; 0] = [];
    interface.security = Some(vec![
        SecurityRequirement::new("certificate", none),
        SecurityRequirement::new("token", none),
        SecurityRequirement::default(),
    ]);
    for item in interface.paths.paths.values_mut() {
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.delete,
        ];
        for operation in operations.into_iter().flatten() {
            refuses(operation);
        }
    }
}

fn refuses(operation: &mut Operation) {
    let refusals = [
        ("401", "It is not known who asks"),
        ("403", "It is not for who asks"),
    ];
    for (status, why) in refusals {
        let content = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name("Told")))
            .build();
        let response: Described = ResponseBuilder::new()
            .description(why)
            .content("application/json", content)
            .build();
        let responses = &mut operation.responses.responses;
        responses.insert(status.into(), RefOr::T(response));
    }
}
