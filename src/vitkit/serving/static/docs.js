// The list of all requests, with forms to try them.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#list", validatorUrl: null, deepLinking: true, tryItOutEnabled: true, defaultModelsExpandDepth: -1, syntaxHighlight: { activated: false } });
