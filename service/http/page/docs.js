// The API reference: Swagger UI on the service's own OpenAPI document.

/* global SwaggerUIBundle */
SwaggerUIBundle({ url: "openapi.json", dom_id: "#reference", deepLinking: true });
