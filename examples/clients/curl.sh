#!/bin/sh
# Anthropic's and OpenAI's APIs with curl: an answer of each, one that streams, and a tool that the model wants called.
set -eu
server=${PENSIEVE_URL:-http://127.0.0.1:8000}

post() {
  curl --silent --show-error --fail --no-buffer "$server$1" -H 'content-type: application/json' \
    -H 'x-api-key: pensieve-local-key' -d "$2"
  echo
}

post /v1/messages '{
  "model": "pensieve-starter", "max_tokens": 100, "temperature": 0,
  "messages": [{"role": "user", "content": "list all files in the current directory"}]
}'

post /v1/chat/completions '{
  "model": "pensieve-starter", "stream": true, "temperature": 0,
  "messages": [{"role": "user", "content": "What is Pensieve?"}]
}'

post /v1/messages '{
  "model": "pensieve-starter", "max_tokens": 100, "temperature": 0,
  "tools": [
    {
      "name": "get_weather", "description": "Get the current weather in a city",
      "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    }
  ],
  "messages": [{"role": "user", "content": "What is the weather like in Lisbon?"}]
}'

curl --silent --show-error --fail "$server/v1/models"
echo
