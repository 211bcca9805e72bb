"""Public ingress: OpenAI's chat completions for agents, feedback and events beside them, all durable."""
