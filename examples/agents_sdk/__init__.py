"""The calculator's tasks, solved by an agent of OpenAI's Agents SDK: trained online through base URL and key only."""
